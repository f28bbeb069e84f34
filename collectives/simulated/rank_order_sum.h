// The sum of one array per rank, added in rank order.
#ifndef COLLECTIVES_SIMULATED_RANK_ORDER_SUM_H_
#define COLLECTIVES_SIMULATED_RANK_ORDER_SUM_H_

#include <cstdint>

#include "absl/types/span.h"

namespace shardproof {

// Writes sum[i] = ((inputs[0][i] + inputs[1][i]) + inputs[2][i]) + ... for i < count, each
// partial sum rounded to the element type. `inputs` is not empty. `sum` may be exactly one of
// the inputs; it must not overlap any of them otherwise. With one input this is a copy.
void SumInRankOrder(absl::Span<const float* const> inputs, int64_t count, float* sum);
void SumInRankOrder(absl::Span<const double* const> inputs, int64_t count, double* sum);

}  // namespace shardproof

#endif  // COLLECTIVES_SIMULATED_RANK_ORDER_SUM_H_
