// What every parser promises, as checks that end the process: a fuzzer finds crashes only.
#ifndef PROPERTY_TESTS_FUZZERS_FUZZ_CHECKS_H_
#define PROPERTY_TESTS_FUZZERS_FUZZ_CHECKS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// Aborts with `what` and `detail` on stderr unless `holds`.
void FuzzCheck(bool holds, absl::string_view what, absl::string_view detail);

// An error is one line that is not empty, and no longer than a person reads. OK: nothing happens.
void CheckMessage(const absl::Status& status);

// ImportModel for texts alone: a fuzzer opens no files, and makes no models whose size only costs
// time.
absl::StatusOr<ModelDescription> ImportSmallText(absl::string_view text);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FUZZERS_FUZZ_CHECKS_H_
