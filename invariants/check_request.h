// What the program `check` was asked for. Apart from it, so that tests reach it.
#ifndef INVARIANTS_CHECK_REQUEST_H_
#define INVARIANTS_CHECK_REQUEST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "invariants/report_request.h"

namespace shardproof {

struct CheckRequest {
  std::string help;         // not empty: --help was given, print this
  std::string observation;  // the file
  std::vector<std::string> checks;
  ReportRequest report;
};

// InvalidArgument in one line that names the flag, its value and what is accepted; among them
// a required check that is not among those that run.
absl::StatusOr<CheckRequest> ParseCheckRequest(int argc, const char* const* argv);

}  // namespace shardproof

#endif  // INVARIANTS_CHECK_REQUEST_H_
