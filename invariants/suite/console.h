// How shardproof's programs behave on a console: paths, the one line of an error, progress.
#ifndef INVARIANTS_SUITE_CONSOLE_H_
#define INVARIANTS_SUITE_CONSOLE_H_

#include <memory>
#include <mutex>
#include <streambuf>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shardproof {

// `bazel run` starts programs elsewhere; afterwards paths mean the directory of the person who
// asked (BUILD_WORKING_DIRECTORY). NotFound when that directory cannot be entered.
absl::Status EnterCallersDirectory();

// The text with a ? for every control character, newlines among them.
std::string OnOneLine(absl::string_view text);

// Prints "program: message" on stderr, always as one line: names in messages come from flags
// and files. Returns 2, the exit code of bad input.
int ReportBadInput(absl::string_view program, const absl::Status& status);

// While it lives, std::cout alone writes to what stdout was, and whoever else prints to stdout
// prints to stderr: NCCL says there what NCCL_DEBUG asks for, and a report that is piped must stay
// a report. Make one before a library runs; unless `wanted` nothing changes.
class StdoutForReports {
 public:
  explicit StdoutForReports(bool wanted);
  StdoutForReports(const StdoutForReports&) = delete;
  StdoutForReports& operator=(const StdoutForReports&) = delete;
  ~StdoutForReports();

 private:
  std::unique_ptr<std::streambuf> reports_;  // null: nothing was changed
  int stdout_ = -1;                          // where they go, a descriptor of reports_
  std::streambuf* before_ = nullptr;
};

// One line on stderr that is overwritten while work goes on and erased at the end. Only where
// stderr is a terminal: logs and pipes see nothing of it. Any thread may show.
class ProgressLine {
 public:
  explicit ProgressLine(bool wanted = true);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine();
  void Show(absl::string_view text);

 private:
  const bool shown_;
  std::mutex mutex_;
};

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_CONSOLE_H_
