// The catalogue: every row of fault_rows.h, as a fault or with the feature it waits for.
//
// A row waits if its fault lies in a part that today's trainer lacks: a second axis, a loss scale,
// masters beside the weights, an offloaded optimizer. A dtype or a mode that its report merely
// happened to run with is no such part. What can be seeded of a waiting row today is a stand-in:
// it runs and must be found like every fault, but the row still waits and is not counted as
// expressible.
#ifndef PROPERTY_TESTS_FAULTS_CATALOGUE_H_
#define PROPERTY_TESTS_FAULTS_CATALOGUE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "property_tests/faults/fault.h"

namespace shardproof {

// In the order of the rows.
std::vector<Fault> AllFaults();  // stand-ins among them
std::vector<WaitingRow> WaitingRows();

// The feature that a row waits for; "" if it does not wait.
std::string WaitsFor(absl::string_view row);
// What a table says beside a fault: that it models a symptom, that it is none, that it is a
// stand-in. May be empty.
std::string Remarks(const Fault& fault);

// By name or row. NotFound, in one line: an unknown one with the names closest to it, one that
// waits and has no stand-in with its feature.
absl::StatusOr<Fault> FindFault(absl::string_view name);

// Those of `names` within few typing errors of `name`, that contain it or that begin as it does,
// closest first; at most three.
std::vector<std::string> CloseNames(absl::string_view name, const std::vector<std::string>& names);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_CATALOGUE_H_
