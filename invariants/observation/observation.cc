#include "invariants/observation/observation.h"

#include "invariants/run_description/name_table.h"

namespace shardproof {
namespace {

constexpr NameTableEntry<EventKind> kEventKinds[] = {
    {EventKind::kCollective, "collective"}, {EventKind::kReshard, "reshard"},
    {EventKind::kCompute, "compute"},       {EventKind::kOptimizer, "optimizer"},
    {EventKind::kLocal, "local"},           {EventKind::kRelease, "release"}};
constexpr NameTableEntry<Purpose> kPurposes[] = {
    {Purpose::kUnshardParameters, "unshard_parameters"},
    {Purpose::kReduceGradients, "reduce_gradients"},
    {Purpose::kBroadcastParameters, "broadcast_parameters"},
    {Purpose::kGatherParameters, "gather_parameters"},
    {Purpose::kClipNorm, "clip_norm"},
    {Purpose::kUsedMap, "used_map"},
    {Purpose::kOverflowFlag, "overflow_flag"},
    {Purpose::kModelBuffers, "model_buffers"},
    {Purpose::kNone, "none"}};
constexpr NameTableEntry<AccessKind> kAccessKinds[] = {{AccessKind::kAllocate, "allocate"},
                                                       {AccessKind::kRead, "read"},
                                                       {AccessKind::kWrite, "write"},
                                                       {AccessKind::kFree, "free"}};
constexpr NameTableEntry<StateClass> kStateClasses[] = {
    {StateClass::kParameter, "parameter"},
    {StateClass::kReducedGradient, "reduced_gradient"},
    {StateClass::kExpAvg, "exp_avg"},
    {StateClass::kExpAvgSq, "exp_avg_sq"}};

}  // namespace

absl::string_view Name(EventKind value) { return NameIn(kEventKinds, value); }
absl::string_view Name(Purpose value) { return NameIn(kPurposes, value); }
absl::string_view Name(AccessKind value) { return NameIn(kAccessKinds, value); }
absl::string_view Name(StateClass value) { return NameIn(kStateClasses, value); }

absl::StatusOr<EventKind> ParseEventKind(absl::string_view text) {
  return ParseIn(kEventKinds, "event kind", text);
}
absl::StatusOr<Purpose> ParsePurpose(absl::string_view text) {
  return ParseIn(kPurposes, "purpose", text);
}
absl::StatusOr<AccessKind> ParseAccessKind(absl::string_view text) {
  return ParseIn(kAccessKinds, "access kind", text);
}
absl::StatusOr<StateClass> ParseStateClass(absl::string_view text) {
  return ParseIn(kStateClasses, "state class", text);
}

}  // namespace shardproof
