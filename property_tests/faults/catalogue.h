// The catalogue: every row of fault_rows.h, as a fault or with the feature it waits for.
#ifndef PROPERTY_TESTS_FAULTS_CATALOGUE_H_
#define PROPERTY_TESTS_FAULTS_CATALOGUE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "property_tests/faults/fault.h"

namespace shardproof {

// In the order of the rows.
std::vector<Fault> AllFaults();
std::vector<WaitingRow> WaitingRows();

// By name or row. NotFound, in one line: an unknown one with the names closest to it, one that
// waits with its feature.
absl::StatusOr<Fault> FindFault(absl::string_view name);

// Those of `names` within few typing errors of `name`, that contain it or that begin as it does,
// closest first; at most three.
std::vector<std::string> CloseNames(absl::string_view name, const std::vector<std::string>& names);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_CATALOGUE_H_
