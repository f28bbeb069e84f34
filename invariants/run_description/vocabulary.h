// The words every room shares: ranks, ranges, dtypes, modes, kinds of collective.
//
// This is the one leaf that collectives, trainer and invariants all include. It holds
// names and nothing that computes a layout, a count or a byte total of a mode, so
// sharing it does not let a check compare the code with itself.
#ifndef INVARIANTS_RUN_DESCRIPTION_VOCABULARY_H_
#define INVARIANTS_RUN_DESCRIPTION_VOCABULARY_H_

#include <compare>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shardproof {

// The index of one rank, 0 <= value < world size.
struct Rank {
  int32_t value = 0;
  auto operator<=>(const Rank&) const = default;
};

// How many ranks there are, >= 1.
struct WorldSize {
  int32_t value = 1;
  auto operator<=>(const WorldSize&) const = default;
};

// Elements [first, first + count) of a tensor or buffer.
struct ElementRange {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
  bool Overlaps(const ElementRange& other) const {
    return first < other.end() && other.first < end();
  }
  auto operator<=>(const ElementRange&) const = default;
};

// Ranks first, first + stride, ..., `count` of them.
struct Group {
  int32_t first = 0;
  int32_t stride = 1;
  int32_t count = 1;
  bool Contains(Rank rank) const {
    return rank.value >= first && (rank.value - first) % stride == 0 &&
           (rank.value - first) / stride < count;
  }
  Rank member(int32_t index) const { return Rank{first + index * stride}; }
  auto operator<=>(const Group&) const = default;
};

enum class Dtype : uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64 };

// What the trainer shards. The table of DESIGN's six modes is in run_description.h.
enum class Mode : uint8_t {
  kReplicated,
  kZero1Broadcast,
  kZero1AllGather,
  kZero2,
  kShardGradOp,
  kFullShard,
};

// When `full_shard` gathers the next unit in backward; every other mode has kNotApplicable.
enum class Prefetch : uint8_t { kNotApplicable, kBackwardPre, kBackwardPost, kNone };

// How the tensors of a unit or bucket are cut into shards.
enum class LayoutKind : uint8_t { kFlat, kFlatAligned, kRows, kOwner };

// Which micro-batches reduce their gradients over the ranks.
enum class GradSync : uint8_t { kEvery, kLast };

enum class OptimizerKind : uint8_t { kAdamW, kSgd };

enum class MemoryTier : uint8_t { kDevice, kHost };

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kBarrier,
};
inline constexpr size_t kCollectiveKindCount = 5;

enum class Phase : uint8_t { kForward, kBackward, kOptimizer, kOther };

// What a buffer holds. Roles up to kScalar are model state and count towards
// steady and peak bytes; the others are lines of their own.
enum class BufferRole : uint8_t {
  kParameter,           // a parameter shard, or the whole parameters of a replicated mode
  kUnshardedParameter,  // a transient full unit
  kGradient,            // a gradient that outlives the step: bucket or shard
  kUnreducedGradient,   // a transient full gradient before its reduction
  kOptimizerState,      // exp_avg and exp_avg_sq (AdamW), momentum (SGD)
  kScalar,              // step counters, 4 bytes for each tensor with state on the rank
  kActivation,
  kInput,
  kWorkspace,
};

enum class StreamId : uint8_t { kCompute, kCommunication };
inline constexpr int kStreams = 2;

int64_t DtypeBytes(Dtype dtype);
// shard_grad_op and full_shard: parameters are sharded by unit outside computation. The
// other modes keep them whole and reduce gradients by bucket.
bool ShardsUnits(Mode mode);
bool IsModelState(BufferRole role);

// The lower-case names of flags, JSON and messages: "float32", "zero1_broadcast",
// "backward_pre", "flat_aligned", "every", "adamw", "all_reduce", "forward", ...
absl::string_view Name(Dtype value);
absl::string_view Name(Mode value);
absl::string_view Name(Prefetch value);
absl::string_view Name(LayoutKind value);
absl::string_view Name(GradSync value);
absl::string_view Name(OptimizerKind value);
absl::string_view Name(MemoryTier value);
absl::string_view Name(CollectiveKind value);
absl::string_view Name(Phase value);
absl::string_view Name(BufferRole value);
absl::string_view Name(StreamId value);

// The inverse of Name. InvalidArgument names the value and lists what is accepted.
absl::StatusOr<Dtype> ParseDtype(absl::string_view text);
absl::StatusOr<Mode> ParseMode(absl::string_view text);
absl::StatusOr<Prefetch> ParsePrefetch(absl::string_view text);
absl::StatusOr<LayoutKind> ParseLayoutKind(absl::string_view text);
absl::StatusOr<GradSync> ParseGradSync(absl::string_view text);
absl::StatusOr<OptimizerKind> ParseOptimizerKind(absl::string_view text);
absl::StatusOr<MemoryTier> ParseMemoryTier(absl::string_view text);
absl::StatusOr<CollectiveKind> ParseCollectiveKind(absl::string_view text);
absl::StatusOr<Phase> ParsePhase(absl::string_view text);
absl::StatusOr<BufferRole> ParseBufferRole(absl::string_view text);
absl::StatusOr<StreamId> ParseStreamId(absl::string_view text);

}  // namespace shardproof

#endif  // INVARIANTS_RUN_DESCRIPTION_VOCABULARY_H_
