#include "invariants/suite/trainer_observation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/message_text.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

constexpr int64_t kBytesOfFloat = 4;

std::string RangeText(const ElementRange& range) {
  return absl::StrCat(range.count, " elements from ", range.first);
}

bool LiesWithin(const ElementRange& range, int64_t elements) {
  return range.first >= 0 && range.count >= 0 && range.first <= elements &&
         range.count <= elements - range.first;
}

// One rank's words, checked against the run and against each other.
class RankWords {
 public:
  RankWords(const RunDescription& run, int64_t step, Rank rank, const RankStep& told)
      : run_(run), step_(step), rank_(rank), report_(*told.report), log_(*told.log) {}

  absl::Status Check() const {
    for (const ShownRange& shown : report_.state) SHARDPROOF_RETURN_IF_ERROR(CheckShown(shown));
    SHARDPROOF_RETURN_IF_ERROR(CheckUpdates());
    if (report_.bytes.has_value()) SHARDPROOF_RETURN_IF_ERROR(CheckBytes(*report_.bytes));
    if (log_.label_left()) {
      return Wrong("a label was given and no collective was started after it",
                   "each Label is followed by the Start of its collective");
    }
    for (const BufferInfo& buffer : log_.events().buffers) {
      if (buffer.elements < 0) {
        return Wrong(absl::StrCat("a buffer of ", buffer.elements, " elements"), "0 or more");
      }
    }
    const RankEvents& events = log_.events();
    for (size_t i = 0; i < events.events.size(); ++i) {
      SHARDPROOF_RETURN_IF_ERROR(CheckEvent(i));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Wrong(absl::string_view what, absl::string_view accepted) const {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_, ", rank ", rank_.value, ": ", what, "; accepted: ", accepted));
  }

  int32_t tensors() const { return static_cast<int32_t>(run_.model.tensors.size()); }
  int32_t buffers() const { return static_cast<int32_t>(log_.events().buffers.size()); }

  absl::Status CheckIndex(absl::string_view what, int32_t index, int64_t count) const {
    if (index >= -1 && index < count) return absl::OkStatus();
    return Wrong(absl::StrCat(what, " ", index),
                 count == 0 ? "-1 only, for there is none" : absl::StrCat("-1 to ", count - 1));
  }

  absl::Status CheckShown(const ShownRange& shown) const {
    SHARDPROOF_RETURN_IF_ERROR(
        CheckIndex(absl::StrCat("state of tensor"), shown.tensor, tensors()));
    const std::string what =
        absl::StrCat(Name(shown.state), " of ",
                     shown.tensor < 0 ? "padding" : Shown(run_.model.tensors[shown.tensor].name),
                     ", ", RangeText(shown.range));
    if (shown.tensor >= 0) {
      const int64_t elements = Elements(run_.model.tensors[shown.tensor]);
      if (!LiesWithin(shown.range, elements)) {
        return Wrong(what, absl::StrCat("a range within its ", elements, " elements"));
      }
    } else if (shown.range.first < 0 || shown.range.count < 0) {
      return Wrong(what, "a range from 0 on");
    }
    return CheckMemory(shown, what);
  }

  absl::Status CheckMemory(const ShownRange& shown, const std::string& what) const {
    const int64_t values = static_cast<int64_t>(shown.values.size());
    if (values != 0 && values != shown.range.count) {
      return Wrong(absl::StrCat(what, ", with ", values, " values"),
                   "as many values as the range has elements, or none");
    }
    if (values != 0 && shown.values.data() == nullptr) {
      return Wrong(absl::StrCat(what, ", with null values"), "a pointer to them");
    }
    if (shown.buffer == -1 || buffers() == 0) return absl::OkStatus();
    SHARDPROOF_RETURN_IF_ERROR(CheckIndex(absl::StrCat(what, ": buffer"), shown.buffer, buffers()));
    const int64_t elements = log_.events().buffers[shown.buffer].elements;
    if (!LiesWithin({shown.buffer_offset, shown.range.count}, elements)) {
      return Wrong(
          absl::StrCat(what, " at offset ", shown.buffer_offset, " of buffer ", shown.buffer),
          absl::StrCat("a place within its ", elements, " elements"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckUpdates() const {
    std::vector<bool> counted(run_.model.tensors.size(), false);
    for (const TensorStep& updates : report_.updates) {
      if (updates.tensor < 0 || updates.tensor >= tensors()) {
        return Wrong(absl::StrCat("a step counter of tensor ", updates.tensor),
                     absl::StrCat("0 to ", tensors() - 1));
      }
      const std::string name = Shown(run_.model.tensors[updates.tensor].name);
      if (updates.updates < 0) {
        return Wrong(absl::StrCat(updates.updates, " updates of ", name), "0 or more");
      }
      if (counted[updates.tensor]) {
        return Wrong(absl::StrCat("a second step counter of ", name), "one a tensor");
      }
      counted[updates.tensor] = true;
    }
    return absl::OkStatus();
  }

  absl::Status CheckBytes(const StateBytes& bytes) const {
    for (const int64_t count :
         {bytes.parameter, bytes.gradient, bytes.optimizer, bytes.padding, bytes.scalar}) {
      if (count < 0) return Wrong(absl::StrCat(count, " bytes of state"), "0 or more");
    }
    return absl::OkStatus();
  }

  absl::Status CheckEvent(size_t index) const {
    const Event& event = log_.events().events[index];
    const ModelDescription& model = run_.model;
    const std::string what = absl::StrCat("operation ", index, " (", Name(event.kind), "): ");
    SHARDPROOF_RETURN_IF_ERROR(
        CheckIndex(what + "micro-batch", event.micro_batch, run_.data.num_micro_batches));
    SHARDPROOF_RETURN_IF_ERROR(
        CheckIndex(what + "unit", event.unit, static_cast<int64_t>(model.units.size())));
    // Buckets hold at least one tensor each.
    SHARDPROOF_RETURN_IF_ERROR(CheckIndex(what + "bucket", event.bucket, tensors()));
    SHARDPROOF_RETURN_IF_ERROR(CheckIndex(what + "tensor", event.tensor, tensors()));
    const int64_t stages = static_cast<int64_t>(model.stages.size());
    const bool computes = event.kind == EventKind::kCompute;
    if (computes &&
        (event.stage_count < 1 || !LiesWithin({event.stage, event.stage_count}, stages))) {
      return Wrong(absl::StrCat(what, event.stage_count, " stages from ", event.stage),
                   absl::StrCat("at least one of stages 0 to ", stages - 1));
    }
    const absl::Span<const Access> accesses =
        absl::MakeConstSpan(log_.events().accesses).subspan(event.first_access, event.access_count);
    for (const Access& access : accesses) SHARDPROOF_RETURN_IF_ERROR(CheckAccess(what, access));
    return absl::OkStatus();
  }

  absl::Status CheckAccess(const std::string& operation, const Access& access) const {
    const std::string what = absl::StrCat(operation, Name(access.kind), " of buffer ");
    if (access.buffer < 0 || access.buffer >= buffers()) {
      return Wrong(absl::StrCat(what, access.buffer), buffers() == 0
                                                          ? "none, for no buffer was added"
                                                          : absl::StrCat("0 to ", buffers() - 1));
    }
    const int64_t elements = log_.events().buffers[access.buffer].elements;
    if (!LiesWithin(access.range, elements)) {
      return Wrong(absl::StrCat(what, access.buffer, ", ", RangeText(access.range)),
                   absl::StrCat("a range within its ", elements, " elements"));
    }
    if (access.version < -1) {
      return Wrong(absl::StrCat(what, access.buffer, " at version ", access.version),
                   "a number of updates, or -1 for unknown");
    }
    return absl::OkStatus();
  }

  const RunDescription& run_;
  const int64_t step_;
  const Rank rank_;
  const RankReport& report_;
  const StepLog& log_;
};

bool ShowsState(const RankStep& rank) {
  const RankReport& report = *rank.report;
  return !report.state.empty() || !report.updates.empty() || report.bytes.has_value();
}

// All ranks or none: whether `has` holds, or who differs from rank 0.
template <typename Has>
absl::StatusOr<bool> AllOrNone(int64_t step, absl::string_view what,
                               absl::Span<const RankStep> ranks, Has has) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (has(ranks[rank]) == has(ranks[0])) continue;
    const size_t without = has(ranks[0]) ? rank : 0;
    return absl::InvalidArgumentError(absl::StrCat("step ", step, ": rank ", without, " told no ",
                                                   what, ", and rank ", without == 0 ? rank : 0,
                                                   " did; accepted: all ranks or none"));
  }
  return has(ranks[0]);
}

// Then there was nothing to label, and the communicators' word is enough.
bool NobodyCommunicates(absl::Span<const RankStep> ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [](const RankStep& rank) { return rank.log->events().events.empty(); });
}

// What the shown elements and counters come to, for a trainer that states no bytes.
StateBytes BytesShown(const RankReport& report, OptimizerKind optimizer) {
  StateBytes bytes;
  for (const ShownRange& shown : report.state) {
    int64_t& line = shown.tensor < 0                              ? bytes.padding
                    : shown.state == StateClass::kParameter       ? bytes.parameter
                    : shown.state == StateClass::kReducedGradient ? bytes.gradient
                                                                  : bytes.optimizer;
    line += shown.range.count * kBytesOfFloat;
  }
  if (optimizer == OptimizerKind::kAdamW) {
    bytes.scalar = kBytesOfFloat * static_cast<int64_t>(report.updates.size());
  }
  return bytes;
}

RankState StateOf(const RankReport& report, Rank rank, OptimizerKind optimizer) {
  RankState state;
  state.ranks = {rank.value, 1, 1};
  state.bytes = report.bytes.has_value() ? *report.bytes : BytesShown(report, optimizer);
  state.steps = report.updates;
  state.segments.reserve(report.state.size());
  for (const ShownRange& shown : report.state) {
    state.segments.push_back({shown.state, shown.tensor, shown.range, shown.buffer,
                              shown.buffer_offset,
                              shown.values.empty() ? nullptr : shown.values.data()});
  }
  return state;
}

}  // namespace

absl::StatusOr<StepObservation> MergeStep(const RunDescription& run, int64_t step,
                                          Arithmetic arithmetic, absl::Span<const RankStep> ranks) {
  if (static_cast<int64_t>(ranks.size()) != run.sharding.world_size.value) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step, ": ", ranks.size(),
                     " ranks were shown; accepted: ", run.sharding.world_size.value));
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankWords words(run, step, Rank{static_cast<int32_t>(rank)}, ranks[rank]);
    SHARDPROOF_RETURN_IF_ERROR(words.Check());
  }
  SHARDPROOF_ASSIGN_OR_RETURN(const bool state, AllOrNone(step, "state", ranks, ShowsState));
  SHARDPROOF_ASSIGN_OR_RETURN(
      const bool told,
      AllOrNone(step, "operations", ranks, [](const RankStep& rank) { return rank.log->told(); }));
  const bool events = told || NobodyCommunicates(ranks);
  SHARDPROOF_ASSIGN_OR_RETURN(const bool losses,
                              AllOrNone(step, "loss", ranks, [](const RankStep& rank) {
                                return rank.report->loss.has_value();
                              }));
  SHARDPROOF_ASSIGN_OR_RETURN(const bool clips,
                              AllOrNone(step, "clip", ranks, [](const RankStep& rank) {
                                return rank.report->clip.has_value();
                              }));
  StepObservation observation;
  observation.step = step;
  observation.any_order = arithmetic == Arithmetic::kAnyOrder;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankReport& report = *ranks[rank].report;
    const Rank id{static_cast<int32_t>(rank)};
    if (state) observation.states.push_back(StateOf(report, id, run.optimizer.kind));
    if (events) observation.events.push_back(ranks[rank].log->events());
    if (losses) observation.losses.push_back(*report.loss);
    if (clips) observation.clips.push_back(*report.clip);
  }
  return observation;
}

}  // namespace shardproof
