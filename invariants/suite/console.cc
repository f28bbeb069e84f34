#include "invariants/suite/console.h"

#include <unistd.h>

#include <cstdlib>
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
