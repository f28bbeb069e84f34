// Placement: which tensors share a buffer in this run, and how those buffers are laid out.
//
// Planners and engines read it; it is the same on every rank. Three maps say where a
// tensor's parameter, gradient and moments live; in most modes they name the same set.
#ifndef TRAINER_SHARDING_PLACEMENT_H_
#define TRAINER_SHARDING_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "invariants/run_description/run_description.h"
#include "trainer/sharding/layout.h"

namespace shardproof {

// Elements [first, first + count) of a tensor lie at `offset` of the padded full buffer.
struct Piece {
  int64_t first = 0;
  int64_t count = 0;
  int64_t offset = 0;
};

// How much of a set's padded full buffer a rank keeps between steps.
enum class Keeps : uint8_t { kNothing, kShard, kWhole };

struct TensorSet {
  std::vector<int32_t> tensors;
  FlatLayout layout;
  int32_t unit = -1;               // unit modes
  int32_t bucket = -1;             // bucket modes
  int32_t owner = -1;              // zero1_broadcast's parameter sets: the only rank with moments
  bool trainable = false;          // at least one tensor is
  int64_t tensor_elements = 0;     // logical, of all its tensors
  int64_t trainable_elements = 0;  // of those with a gradient
  Keeps parameter = Keeps::kNothing;
  Keeps gradient = Keeps::kNothing;  // after the reduction
  bool moments = false;              // of the rank's shard; of an owner's set on the owner
};

struct Placement {
  std::vector<TensorSet> sets;
  int32_t moments_per_element = 0;  // AdamW 2, SGD with momentum 1
  bool counts_steps = false;        // AdamW: a step counter a tensor
  // By tensor, an index into sets; -1: frozen, so no gradient and no moments, or without
  // elements.
  std::vector<int32_t> parameter_set;
  std::vector<int32_t> gradient_set;
  std::vector<int32_t> moment_set;
  // By tensor, where it begins in the full buffer of its gradient and moment set. Of use
  // where the set has one shard, so that the tensor is in one piece.
  std::vector<int64_t> gradient_offset;
  std::vector<int64_t> moment_offset;
};

// Unit modes: one set a unit. Bucket modes: one set a bucket and one for all frozen tensors;
// zero1_broadcast: parameters and moments in one set an owning rank instead.
// Needs a valid RunDescription.
Placement MakePlacement(const RunDescription& run);

// Which shard of the set's layout is this rank's.
int32_t ShardOf(const TensorSet& set, Rank rank);

// Whether this rank keeps moments of its shard of the set.
bool KeepsMoments(const TensorSet& set, Rank rank);

// Tensors with an element of moments on this rank: each has a step counter there.
int64_t TensorsWithMoments(const Placement& placement, Rank rank);

// Adds a piece, merged with the last one where both the tensor's elements and the buffer's
// go on: a tensor in one piece is contiguous, though several ranks may own parts of it.
void AppendPiece(const Piece& piece, std::vector<Piece>& pieces);

}  // namespace shardproof

#endif  // TRAINER_SHARDING_PLACEMENT_H_
