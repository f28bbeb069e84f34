// What training ends in, put together from the shards of all ranks.
#ifndef PROPERTY_TESTS_PROPERTIES_FINAL_STATE_H_
#define PROPERTY_TESTS_PROPERTIES_FINAL_STATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// By tensor, the parameters after the run's last step, on the cpu engine. Errors: the engine's, or
// an element that no rank shows.
absl::StatusOr<std::vector<std::vector<float>>> FinalParameters(const RunDescription& run);

// Whether both have the same bits everywhere.
bool SameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_PROPERTIES_FINAL_STATE_H_
