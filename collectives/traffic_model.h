// What one collective call moves, by the two accountings of the field. Never mix them.
//
//   payload  the bytes of the full padded buffer: an all-gather's output, the others' input.
//   bus      what the busiest link carries in a bandwidth-optimal algorithm, per payload byte,
//            for n members: 2(n - 1)/n all-reduce, (n - 1)/n all-gather and reduce-scatter,
//            1 broadcast; all 0 at n = 1.
//
// A barrier moves neither.
#ifndef COLLECTIVES_TRAFFIC_MODEL_H_
#define COLLECTIVES_TRAFFIC_MODEL_H_

#include <cstdint>

#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// `elements` is CollectiveCall::elements, >= 0. Does not depend on the number of members.
int64_t PayloadBytes(CollectiveKind kind, Dtype dtype, int64_t elements);

// `payload_bytes` >= 0 and `members` >= 1. The exact quotient rounded down to a byte; it is
// whole whenever the members divide the payload, as they do in all-gather and reduce-scatter.
// Does not overflow unless the result does.
int64_t BusBytes(CollectiveKind kind, int64_t payload_bytes, int32_t members);

}  // namespace shardproof

#endif  // COLLECTIVES_TRAFFIC_MODEL_H_
