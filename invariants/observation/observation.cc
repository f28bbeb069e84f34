#include "invariants/observation/observation.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shardproof {
namespace {

template <typename E>
struct Entry {
  E value;
  absl::string_view name;
};

constexpr Entry<EventKind> kEventKinds[] = {
    {EventKind::kCollective, "collective"}, {EventKind::kReshard, "reshard"},
    {EventKind::kCompute, "compute"},       {EventKind::kOptimizer, "optimizer"},
    {EventKind::kLocal, "local"},           {EventKind::kRelease, "release"}};
constexpr Entry<Purpose> kPurposes[] = {{Purpose::kUnshardParameters, "unshard_parameters"},
                                        {Purpose::kReduceGradients, "reduce_gradients"},
                                        {Purpose::kBroadcastParameters, "broadcast_parameters"},
                                        {Purpose::kGatherParameters, "gather_parameters"},
                                        {Purpose::kClipNorm, "clip_norm"},
                                        {Purpose::kUsedMap, "used_map"},
                                        {Purpose::kOverflowFlag, "overflow_flag"},
                                        {Purpose::kModelBuffers, "model_buffers"},
                                        {Purpose::kNone, "none"}};
constexpr Entry<AccessKind> kAccessKinds[] = {{AccessKind::kAllocate, "allocate"},
                                              {AccessKind::kRead, "read"},
                                              {AccessKind::kWrite, "write"},
                                              {AccessKind::kFree, "free"}};
constexpr Entry<StateClass> kStateClasses[] = {{StateClass::kParameter, "parameter"},
                                               {StateClass::kReducedGradient, "reduced_gradient"},
                                               {StateClass::kExpAvg, "exp_avg"},
                                               {StateClass::kExpAvgSq, "exp_avg_sq"}};

template <typename E, size_t n>
absl::string_view NameIn(const Entry<E> (&table)[n], E value) {
  for (const Entry<E>& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

template <typename E, size_t n>
absl::StatusOr<E> ParseIn(const Entry<E> (&table)[n], absl::string_view what,
                          absl::string_view text) {
  std::string accepted;
  for (const Entry<E>& entry : table) {
    if (entry.name == text) return entry.value;
    absl::StrAppend(&accepted, accepted.empty() ? "" : ", ", entry.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, " '", text, "' is unknown; accepted: ", accepted));
}

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
