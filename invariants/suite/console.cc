#include "invariants/suite/console.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ext/stdio_filebuf.h>
#include <iostream>

#include "absl/strings/str_cat.h"

namespace shardproof {
namespace {

// Back to the first column, and erase what stands there.
constexpr char kOverwrite[] = "\r\033[K";

}  // namespace

std::string OnOneLine(absl::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return line;
}

absl::Status EnterCallersDirectory() {
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr || chdir(directory) == 0) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("BUILD_WORKING_DIRECTORY=", directory, ": cannot enter the directory"));
}

int ReportBadInput(absl::string_view program, const absl::Status& status) {
  std::cerr << program << ": " << OnOneLine(status.message()) << "\n";
  return 2;
}

StdoutForReports::StdoutForReports(bool wanted) {
  if (!wanted) return;
  std::cout.flush();
  std::fflush(stdout);
  const int reports = dup(STDOUT_FILENO);
  if (reports < 0) return;
  if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    close(reports);
    return;
  }
  stdout_ = reports;
  reports_ = std::make_unique<__gnu_cxx::stdio_filebuf<char>>(reports, std::ios::out);
  before_ = std::cout.rdbuf(reports_.get());
}

StdoutForReports::~StdoutForReports() {
  if (reports_ == nullptr) return;
  std::cout.flush();
  std::cout.rdbuf(before_);
  std::fflush(stdout);
  dup2(stdout_, STDOUT_FILENO);
}

ProgressLine::ProgressLine(bool wanted) : shown_(wanted && isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (shown_) std::cerr << kOverwrite << std::flush;
}

void ProgressLine::Show(absl::string_view text) {
  if (!shown_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::cerr << kOverwrite << text << std::flush;
}

}  // namespace shardproof
