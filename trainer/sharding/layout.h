// How a set of tensors is laid out in one flat buffer and cut into shards.
//
// A FlatLayout is a list of segments that covers the full padded buffer exactly once: rank
// 0's shard, then rank 1's, and so on, each of `shard_elements`. A segment is a run of one
// tensor's elements or padding. With one shard the layout is just where tensors lie.
#ifndef TRAINER_SHARDING_LAYOUT_H_
#define TRAINER_SHARDING_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

struct Segment {
  int32_t tensor = -1;  // -1: padding
  int64_t first = 0;    // first element within the tensor
  int64_t count = 0;    // >= 1
  int32_t rank = 0;
  int64_t shard_offset = 0;  // elements from the start of the rank's shard
};

struct FlatLayout {
  int32_t shards = 1;
  int64_t shard_elements = 0;
  std::vector<Segment> segments;               // by rank, then shard_offset
  std::vector<int32_t> first_segment_of_rank;  // shards + 1 entries, into segments
  int64_t padded_elements() const { return shards * shard_elements; }
  int64_t offset(const Segment& s) const { return s.rank * shard_elements + s.shard_offset; }
  absl::Span<const Segment> shard(int32_t rank) const {
    return absl::MakeConstSpan(segments).subspan(
        first_segment_of_rank[rank], first_segment_of_rank[rank + 1] - first_segment_of_rank[rank]);
  }
};

// Lays `tensors` (indices into model.tensors, in this order) out over `shards` ranks.
// `element_bytes` is what flat_aligned aligns by.
FlatLayout MakeLayout(const ModelDescription& model, absl::Span<const int32_t> tensors,
                      LayoutKind kind, int32_t shards, int64_t element_bytes);

// The owner of each of `tensors` under LayoutKind::kOwner: largest first, each to the rank
// with the fewest elements so far; ties go to the earlier tensor and the lower rank.
std::vector<int32_t> AssignOwners(const ModelDescription& model, absl::Span<const int32_t> tensors,
                                  int32_t ranks);

// DDP's buckets: trainable tensors in reverse registration order; a bucket closes when its
// float32 bytes reach or pass `cap_bytes`. Tensors without elements are in none.
std::vector<std::vector<int32_t>> MakeBuckets(const ModelDescription& model, int64_t cap_bytes);

}  // namespace shardproof

#endif  // TRAINER_SHARDING_LAYOUT_H_
