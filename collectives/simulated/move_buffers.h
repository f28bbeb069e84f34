// What each collective does to its members' buffers. For simulated_group.cc only.
#ifndef COLLECTIVES_SIMULATED_MOVE_BUFFERS_H_
#define COLLECTIVES_SIMULATED_MOVE_BUFFERS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "collectives/communicator.h"

namespace shardproof {

// Room for one pointer per member, kept so that no collective allocates.
struct InputPointers {
  explicit InputPointers(int32_t members) : float32(members), float64(members) {}
  std::vector<const float*> float32;
  std::vector<const double*> float64;
};

// Carries out the collective that `calls` agree on, calls[i] being member i's: each valid, all
// equal in kind, dtype, elements and root. `root` is the member index of a broadcast's root.
void MoveBuffers(absl::Span<const CollectiveCall> calls, int32_t root, InputPointers& inputs);

}  // namespace shardproof

#endif  // COLLECTIVES_SIMULATED_MOVE_BUFFERS_H_
