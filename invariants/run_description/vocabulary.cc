#include "invariants/run_description/vocabulary.h"

#include "invariants/run_description/name_table.h"

namespace shardproof {
namespace {

constexpr NameTableEntry<Dtype> kDtypes[] = {{Dtype::kFloat32, "float32"},
                                             {Dtype::kBFloat16, "bfloat16"},
                                             {Dtype::kFloat16, "float16"},
                                             {Dtype::kFloat64, "float64"}};
constexpr NameTableEntry<Mode> kModes[] = {
    {Mode::kReplicated, "replicated"},          {Mode::kZero1Broadcast, "zero1_broadcast"},
    {Mode::kZero1AllGather, "zero1_allgather"}, {Mode::kZero2, "zero2"},
    {Mode::kShardGradOp, "shard_grad_op"},      {Mode::kFullShard, "full_shard"}};
constexpr NameTableEntry<Prefetch> kPrefetches[] = {{Prefetch::kNotApplicable, "not_applicable"},
                                                    {Prefetch::kBackwardPre, "backward_pre"},
                                                    {Prefetch::kBackwardPost, "backward_post"},
                                                    {Prefetch::kNone, "none"}};
constexpr NameTableEntry<LayoutKind> kLayouts[] = {{LayoutKind::kFlat, "flat"},
                                                   {LayoutKind::kFlatAligned, "flat_aligned"},
                                                   {LayoutKind::kRows, "rows"},
                                                   {LayoutKind::kOwner, "owner"}};
constexpr NameTableEntry<GradSync> kGradSyncs[] = {{GradSync::kEvery, "every"},
                                                   {GradSync::kLast, "last"}};
constexpr NameTableEntry<OptimizerKind> kOptimizers[] = {{OptimizerKind::kAdamW, "adamw"},
                                                         {OptimizerKind::kSgd, "sgd"}};
constexpr NameTableEntry<MemoryTier> kTiers[] = {{MemoryTier::kDevice, "device"},
                                                 {MemoryTier::kHost, "host"}};
constexpr NameTableEntry<CollectiveKind> kCollectives[] = {
    {CollectiveKind::kAllReduce, "all_reduce"},
    {CollectiveKind::kAllGather, "all_gather"},
    {CollectiveKind::kReduceScatter, "reduce_scatter"},
    {CollectiveKind::kBroadcast, "broadcast"},
    {CollectiveKind::kBarrier, "barrier"}};
constexpr NameTableEntry<Phase> kPhases[] = {{Phase::kForward, "forward"},
                                             {Phase::kBackward, "backward"},
                                             {Phase::kOptimizer, "optimizer"},
                                             {Phase::kOther, "other"}};
constexpr NameTableEntry<BufferRole> kRoles[] = {
    {BufferRole::kParameter, "parameter"},
    {BufferRole::kUnshardedParameter, "unsharded_parameter"},
    {BufferRole::kGradient, "gradient"},
    {BufferRole::kUnreducedGradient, "unreduced_gradient"},
    {BufferRole::kOptimizerState, "optimizer_state"},
    {BufferRole::kScalar, "scalar"},
    {BufferRole::kActivation, "activation"},
    {BufferRole::kInput, "input"},
    {BufferRole::kWorkspace, "workspace"}};
constexpr NameTableEntry<StreamId> kStreamNames[] = {{StreamId::kCompute, "compute"},
                                                     {StreamId::kCommunication, "communication"}};

}  // namespace

int64_t DtypeBytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return 4;
    case Dtype::kBFloat16:
    case Dtype::kFloat16:
      return 2;
    case Dtype::kFloat64:
      return 8;
  }
  return 0;
}

bool ShardsUnits(Mode mode) { return mode == Mode::kShardGradOp || mode == Mode::kFullShard; }

bool IsModelState(BufferRole role) { return role <= BufferRole::kScalar; }

absl::string_view Name(Dtype value) { return NameIn(kDtypes, value); }
absl::string_view Name(Mode value) { return NameIn(kModes, value); }
absl::string_view Name(Prefetch value) { return NameIn(kPrefetches, value); }
absl::string_view Name(LayoutKind value) { return NameIn(kLayouts, value); }
absl::string_view Name(GradSync value) { return NameIn(kGradSyncs, value); }
absl::string_view Name(OptimizerKind value) { return NameIn(kOptimizers, value); }
absl::string_view Name(MemoryTier value) { return NameIn(kTiers, value); }
absl::string_view Name(CollectiveKind value) { return NameIn(kCollectives, value); }
absl::string_view Name(Phase value) { return NameIn(kPhases, value); }
absl::string_view Name(BufferRole value) { return NameIn(kRoles, value); }
absl::string_view Name(StreamId value) { return NameIn(kStreamNames, value); }

absl::StatusOr<Dtype> ParseDtype(absl::string_view text) { return ParseIn(kDtypes, "dtype", text); }
absl::StatusOr<Mode> ParseMode(absl::string_view text) { return ParseIn(kModes, "mode", text); }
absl::StatusOr<Prefetch> ParsePrefetch(absl::string_view text) {
  return ParseIn(kPrefetches, "prefetch", text);
}
absl::StatusOr<LayoutKind> ParseLayoutKind(absl::string_view text) {
  return ParseIn(kLayouts, "layout", text);
}
absl::StatusOr<GradSync> ParseGradSync(absl::string_view text) {
  return ParseIn(kGradSyncs, "grad_sync", text);
}
absl::StatusOr<OptimizerKind> ParseOptimizerKind(absl::string_view text) {
  return ParseIn(kOptimizers, "optimizer", text);
}
absl::StatusOr<MemoryTier> ParseMemoryTier(absl::string_view text) {
  return ParseIn(kTiers, "memory tier", text);
}
absl::StatusOr<CollectiveKind> ParseCollectiveKind(absl::string_view text) {
  return ParseIn(kCollectives, "collective", text);
}
absl::StatusOr<Phase> ParsePhase(absl::string_view text) { return ParseIn(kPhases, "phase", text); }
absl::StatusOr<BufferRole> ParseBufferRole(absl::string_view text) {
  return ParseIn(kRoles, "buffer role", text);
}
absl::StatusOr<StreamId> ParseStreamId(absl::string_view text) {
  return ParseIn(kStreamNames, "stream", text);
}

}  // namespace shardproof
