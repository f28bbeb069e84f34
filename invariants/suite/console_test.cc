// That a report on stdout stays a report, whatever a library prints there.
#include "invariants/suite/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

// What a descriptor gets while it lives goes to a file.
class Redirected {
 public:
  Redirected(int descriptor, std::string path)
      : descriptor_(descriptor), path_(std::move(path)), before_(dup(descriptor)) {
    const int file = open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    dup2(file, descriptor_);
    close(file);
  }
  ~Redirected() { Restore(); }
  std::string Restore() {
    std::cout.flush();
    std::fflush(stdout);
    if (before_ >= 0) {
      dup2(before_, descriptor_);
      close(before_);
      before_ = -1;
    }
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  const int descriptor_;
  const std::string path_;
  int before_;
};

struct Printed {
  std::string on_stdout;
  std::string on_stderr;
};

Printed PrintBoth(bool wanted) {
  Redirected out(STDOUT_FILENO, testing::TempDir() + "/out");
  Redirected err(STDERR_FILENO, testing::TempDir() + "/err");
  {
    const StdoutForReports reports(wanted);
    std::printf("a library's words\n");
    std::fflush(stdout);
    std::cout << "a report\n" << std::flush;
  }
  std::cout << "afterwards\n";
  Printed printed;
  printed.on_stderr = err.Restore();
  printed.on_stdout = out.Restore();
  return printed;
}

TEST(StdoutForReports, KeepsWhatOthersPrintOutOfTheReport) {
  const Printed printed = PrintBoth(/*wanted=*/true);
  EXPECT_EQ(printed.on_stdout, "a report\nafterwards\n");
  EXPECT_EQ(printed.on_stderr, "a library's words\n");
}

TEST(StdoutForReports, ChangesNothingUnlessWanted) {
  const Printed printed = PrintBoth(/*wanted=*/false);
  EXPECT_EQ(printed.on_stdout, "a library's words\na report\nafterwards\n");
  EXPECT_EQ(printed.on_stderr, "");
}

}  // namespace
}  // namespace shardproof
