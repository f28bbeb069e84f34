#include "invariants/checks/unshard_lifecycle.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "invariants/checks/describe.h"

namespace shardproof {
namespace {

// What one rank did with a unit so far in the step.
struct UnitState {
  bool unsharded = false;
  bool complete = false;  // its gather ended
  bool between = false;   // forward ran, and no backward since
  bool resharded_between = false;
  int32_t gather = -1;   // event
  int32_t reshard = -1;  // event
  int32_t buffer = -1;   // of the full parameters; -1: not shown
};

struct BufferState {
  bool live = false;
  bool written = false;   // since its allocation
  int32_t freed_by = -1;  // event of this step
};

// Whether what `rank` reads of parameters in the event goes out to others.
bool SendsParameters(const Event& event, int32_t rank) {
  if (event.kind != EventKind::kCollective) return false;
  return event.purpose == Purpose::kUnshardParameters ||
         event.purpose == Purpose::kGatherParameters ||
         (event.purpose == Purpose::kBroadcastParameters && event.root == rank);
}

class UnshardLifecycle final : public Check {
 public:
  absl::string_view name() const override { return "unshard_lifecycle"; }
  void Begin(const RunDescription& run) override;
  void Step(const StepObservation& observed, const ReferenceStep* reference) override;
  CheckResult Finish() override { return findings_.Finish(); }

 private:
  // What outlives a step: which buffers of a rank are alive and written.
  struct RankMemory {
    int32_t rank = -1;
    std::vector<BufferState> buffers;
  };

  void JudgeRank(size_t index, const RankEvents& events);
  void BeginRank(RankMemory* memory);
  void JudgeEvent(const Event& event);
  void JudgeGather(const Event& event);
  void JudgeReshard(const Event& event);
  void JudgeCompute(const Event& event);
  void RequireAccesses(const Event& event);
  void JudgeStage(const Event& event, int32_t unit, bool own);
  void JudgeBetween(const Event& event, int32_t unit);
  void JudgeAccess(const Event& event, const Access& access);
  void JudgeRead(const Access& access, BufferState* buffer);
  void JudgeVersion(const Event& event, const Access& access);
  void EndRank();
  bool IsUpdated(int32_t buffer) const;
  bool KeptFromForwardToBackward(int32_t unit) const;
  int32_t AllocatedFullParameters(const Event& event) const;
  bool Frees(const Event& event, int32_t buffer) const;
  bool ValidUnit(const Event& event);

  Violation Base(absl::string_view rule, int32_t unit) const;
  Violation BufferViolation(absl::string_view rule, int32_t buffer) const;
  std::string Here() const { return EventText(run_->model, *events_, event_); }
  std::string There(int32_t event) const { return EventText(run_->model, *events_, event); }

  const RunDescription* run_ = nullptr;
  bool unit_mode_ = false;
  std::vector<int32_t> unit_of_stage_;
  // By stage: the units that must be unsharded while it computes, its own first.
  std::vector<std::vector<int32_t>> units_of_stage_;
  std::vector<char> stage_has_elements_;
  std::vector<char> is_trained_;  // by unit: some tensor is updated
  bool has_frozen_ = false;

  std::vector<RankMemory> memories_;  // by place in StepObservation::events
  bool first_step_ = true;
  bool accesses_missing_ = false;  // said once
  bool version_missing_ = false;   // said once

  // Of the rank that is being judged.
  const StepObservation* observed_ = nullptr;
  const RankEvents* events_ = nullptr;
  int32_t event_ = -1;
  int64_t updates_ = 0;
  std::vector<BufferState>* buffers_ = nullptr;
  std::vector<BufferState> before_;
  std::vector<UnitState> units_;
  std::vector<int32_t> judged_;  // units of the event at hand
  Findings findings_{"unshard_lifecycle"};
};

void UnshardLifecycle::Begin(const RunDescription& run) {
  run_ = &run;
  const ModelDescription& model = run.model;
  unit_mode_ = run.sharding.mode == Mode::kShardGradOp || run.sharding.mode == Mode::kFullShard;
  unit_of_stage_ = UnitOfStage(model);
  const std::vector<int32_t> unit_of_tensor = UnitOfTensor(model);
  std::vector<char> has_elements(model.units.size(), 0);
  is_trained_.assign(model.units.size(), 0);
  for (size_t tensor = 0; tensor < model.tensors.size(); ++tensor) {
    if (Elements(model.tensors[tensor]) == 0) continue;
    has_elements[unit_of_tensor[tensor]] = 1;
    if (model.tensors[tensor].trainable) is_trained_[unit_of_tensor[tensor]] = 1;
  }
  units_of_stage_.assign(model.stages.size(), {});
  stage_has_elements_.assign(model.stages.size(), 0);
  for (size_t stage = 0; stage < model.stages.size(); ++stage) {
    std::vector<int32_t>& units = units_of_stage_[stage];
    if (has_elements[unit_of_stage_[stage]]) units.push_back(unit_of_stage_[stage]);
    for (const int32_t tensor : model.stages[stage].tensors) {
      if (Elements(model.tensors[tensor]) == 0) continue;
      stage_has_elements_[stage] = 1;
      const int32_t unit = unit_of_tensor[tensor];
      if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
    }
  }
  for (const TensorSpec& tensor : model.tensors) has_frozen_ |= !tensor.trainable;
}

void UnshardLifecycle::Step(const StepObservation& observed, const ReferenceStep*) {
  if (observed.events.empty()) {
    findings_.NotObserved("no events were shown");
    return;
  }
  if (RanksShown(observed.events) != run_->sharding.world_size.value) {
    findings_.NotObserved("the events of some ranks were not shown");
  }
  findings_.Observed();
  observed_ = &observed;
  if (memories_.size() < observed.events.size()) memories_.resize(observed.events.size());
  for (size_t i = 0; i < observed.events.size(); ++i) JudgeRank(i, observed.events[i]);
  first_step_ = false;
}

void UnshardLifecycle::JudgeRank(size_t index, const RankEvents& events) {
  events_ = &events;
  event_ = -1;
  updates_ = observed_->step;
  BeginRank(&memories_[index]);
  for (const Event& event : events.events) {
    ++event_;
    JudgeEvent(event);
  }
  event_ = -1;
  EndRank();
}

// live_before is the word of the observation on what is alive. What a buffer that lived through
// the boundary had been written is remembered; before the first step it was initialised.
void UnshardLifecycle::BeginRank(RankMemory* memory) {
  const bool known = memory->rank == events_->ranks.first;
  before_.swap(memory->buffers);
  memory->rank = events_->ranks.first;
  memory->buffers.assign(events_->buffers.size(), {});
  for (const int32_t buffer : events_->live_before) {
    if (BufferOf(*events_, buffer) == nullptr) continue;
    const bool remembered =
        known && static_cast<size_t>(buffer) < before_.size() && before_[buffer].live;
    memory->buffers[buffer] = {true, !remembered || before_[buffer].written, -1};
  }
  buffers_ = &memory->buffers;
  units_.assign(run_->model.units.size(), {});
  if (first_step_) EndRank();  // nothing is unsharded before training either
}

void UnshardLifecycle::JudgeEvent(const Event& event) {
  switch (event.kind) {
    case EventKind::kCollective:
      if (event.purpose == Purpose::kUnshardParameters) JudgeGather(event);
      break;
    case EventKind::kReshard:
      JudgeReshard(event);
      break;
    case EventKind::kCompute:
      JudgeCompute(event);
      break;
    default:
      break;
  }
  for (const Access& access : AccessesOf(*events_, event)) JudgeAccess(event, access);
  if (event.kind == EventKind::kOptimizer) updates_ = observed_->step + 1;
}

bool UnshardLifecycle::ValidUnit(const Event& event) {
  const int32_t units = static_cast<int32_t>(units_.size());
  if (unit_mode_ && event.unit >= 0 && event.unit < units) return true;
  findings_.Add([&] {
    Violation violation = unit_mode_ ? Base("a gather or reshard is of one unit", -1)
                                     : Base(
                                           "only shard_grad_op and full_shard unshard and "
                                           "reshard parameters",
                                           event.unit);
    violation.expected = unit_mode_ ? absl::StrCat("a unit from 0 to ", units - 1)
                                    : absl::StrCat("no such event in ", Name(run_->sharding.mode));
    violation.actual = absl::StrCat(Here(), unit_mode_ ? absl::StrCat(", unit ", event.unit) : "");
    return violation;
  });
  return false;
}

void UnshardLifecycle::JudgeGather(const Event& event) {
  if (!ValidUnit(event)) return;
  UnitState& unit = units_[event.unit];
  if (unit.unsharded) {
    findings_.Add([&] {
      Violation violation = Base("a unit is gathered only while it is sharded", event.unit);
      violation.expected = absl::StrCat("a reshard after ", There(unit.gather));
      violation.actual = absl::StrCat("gathered again by ", Here());
      violation.likely_cause = "a reshard that was left out, or a gather issued twice";
      return violation;
    });
  }
  const int32_t buffer = AllocatedFullParameters(event);
  if (buffer < 0 && event.access_count > 0) {
    findings_.Add([&] {
      Violation violation = Base("a gather allocates the unit's full parameters", event.unit);
      violation.expected = "an allocation of an unsharded_parameter buffer of the unit";
      violation.actual = absl::StrCat("none in ", Here());
      return violation;
    });
  }
  unit.unsharded = true;
  unit.complete = event.completed;
  unit.gather = event_;
  unit.buffer = buffer;
}

int32_t UnshardLifecycle::AllocatedFullParameters(const Event& event) const {
  for (const Access& access : AccessesOf(*events_, event)) {
    if (access.kind != AccessKind::kAllocate) continue;
    const BufferInfo* info = BufferOf(*events_, access.buffer);
    if (info != nullptr && info->role == BufferRole::kUnshardedParameter &&
        info->unit == event.unit) {
      return access.buffer;
    }
  }
  return -1;
}

bool UnshardLifecycle::Frees(const Event& event, int32_t buffer) const {
  for (const Access& access : AccessesOf(*events_, event)) {
    if (access.kind == AccessKind::kFree && access.buffer == buffer) return true;
  }
  return false;
}

void UnshardLifecycle::JudgeReshard(const Event& event) {
  if (!ValidUnit(event)) return;
  UnitState& unit = units_[event.unit];
  if (!unit.unsharded) {
    findings_.Add([&] {
      Violation violation = Base("a unit is resharded only while it is unsharded", event.unit);
      violation.expected = "an unshard_parameters gather before it";
      violation.actual =
          absl::StrCat(Here(), unit.reshard < 0 ? ", never gathered"
                                                : absl::StrCat(" after ", There(unit.reshard)));
      violation.likely_cause = "a reshard issued twice, or a gather that was left out";
      return violation;
    });
  } else if (unit.buffer >= 0 && !Frees(event, unit.buffer)) {
    findings_.Add([&] {
      Violation violation = Base("a reshard frees the unit's full parameters", event.unit);
      violation.expected =
          absl::StrCat("a free of ", BufferText(run_->model, *events_, unit.buffer));
      violation.actual = absl::StrCat("none in ", Here());
      violation.likely_cause = "full parameters stay in memory after the unit counts as sharded";
      return violation;
    });
  }
  unit.unsharded = false;
  unit.resharded_between = unit.between;
  unit.reshard = event_;
}

// Computation of stages with parameters reads them at least.
void UnshardLifecycle::RequireAccesses(const Event& event) {
  if (accesses_missing_ || !AccessesOf(*events_, event).empty()) return;
  const int64_t stages = static_cast<int64_t>(stage_has_elements_.size());
  const int64_t end = std::min(stages, int64_t{event.stage} + event.stage_count);
  for (int64_t stage = std::max(0, event.stage); stage < end; ++stage) {
    if (!stage_has_elements_[stage]) continue;
    accesses_missing_ = true;
    findings_.NotObserved(absl::StrCat("which buffers ", Here(), " of rank ", events_->ranks.first,
                                       " uses was not shown"));
    return;
  }
}

void UnshardLifecycle::JudgeCompute(const Event& event) {
  RequireAccesses(event);
  if (!unit_mode_) return;
  const int64_t stages = static_cast<int64_t>(units_of_stage_.size());
  const int64_t end = std::min(stages, int64_t{event.stage} + event.stage_count);
  judged_.clear();  // several stages of the event may need one unit
  for (int64_t stage = std::max(0, event.stage); stage < end; ++stage) {
    for (const int32_t unit : units_of_stage_[stage]) {
      if (std::find(judged_.begin(), judged_.end(), unit) != judged_.end()) continue;
      judged_.push_back(unit);
      JudgeStage(event, unit, /*own=*/unit == unit_of_stage_[stage]);
    }
  }
}

void UnshardLifecycle::JudgeStage(const Event& event, int32_t unit, bool own) {
  UnitState& state = units_[unit];
  if (event.phase == Phase::kForward) {
    state.between = true;
    state.resharded_between = false;
  } else if (event.phase == Phase::kBackward && state.between) {
    JudgeBetween(event, unit);
    state.between = false;
  }
  if (state.unsharded && state.complete) return;
  findings_.Add([&] {
    Violation violation =
        Base(own ? "stages compute only while their unit is unsharded"
                 : "stages compute only while the units of their tied tensors are unsharded",
             unit);
    violation.expected = absl::StrCat("a completed gather before ", Here());
    violation.actual = state.unsharded      ? absl::StrCat(There(state.gather), " never completed")
                       : state.reshard >= 0 ? absl::StrCat("sharded since ", There(state.reshard))
                                            : "sharded, and never gathered in this step";
    violation.likely_cause = "a gather left out or issued late, or a reshard that came too early";
    return violation;
  });
}

bool UnshardLifecycle::KeptFromForwardToBackward(int32_t unit) const {
  return run_->sharding.mode == Mode::kShardGradOp ||
         !run_->model.units[unit].reshard_after_forward;
}

// At the first backward of a unit after its forward.
void UnshardLifecycle::JudgeBetween(const Event& event, int32_t unit) {
  const UnitState& state = units_[unit];
  const bool kept = KeptFromForwardToBackward(unit);
  if (state.resharded_between != kept) return;
  if (!kept && !state.unsharded) return;  // resharded too early: JudgeStage's
  findings_.Add([&] {
    Violation violation =
        kept ? Base("a unit that is kept for backward is not resharded before it", unit)
             : Base("a unit is resharded between its last forward and its first backward", unit);
    violation.expected = kept ? absl::StrCat("no reshard before ", Here())
                              : absl::StrCat("a reshard before ", Here());
    violation.actual = kept ? There(state.reshard) : "full parameters alive since forward";
    violation.likely_cause = kept ? "reshard_after_forward where the mode keeps the unit"
                                  : absl::StrCat("no reshard after forward of micro-batch ",
                                                 event.micro_batch, "; peak_memory rises with it");
    return violation;
  });
}

void UnshardLifecycle::JudgeAccess(const Event& event, const Access& access) {
  if (BufferOf(*events_, access.buffer) == nullptr) {
    findings_.Add([&] {
      Violation violation = Base("an access names a buffer of its rank", event.unit);
      violation.expected =
          absl::StrCat("a buffer from 0 to ", int64_t(events_->buffers.size()) - 1);
      violation.actual = absl::StrCat("buffer ", access.buffer, " in ", Here());
      return violation;
    });
    return;
  }
  BufferState& buffer = (*buffers_)[access.buffer];
  const bool allocates = access.kind == AccessKind::kAllocate;
  if (buffer.live == allocates) {
    findings_.Add([&] {
      Violation violation =
          BufferViolation(allocates ? "a live buffer is not allocated again"
                                    : "a buffer is used only between allocation and release",
                          access.buffer);
      violation.expected = allocates ? "a release before it" : "a live buffer";
      violation.actual =
          absl::StrCat(Name(access.kind), " by ", Here(),
                       allocates             ? ""
                       : buffer.freed_by < 0 ? ", never allocated"
                                             : absl::StrCat(", freed by ", There(buffer.freed_by)));
      violation.likely_cause = allocates ? "a release that was left out"
                                         : "a release that came too early, or an allocation or "
                                           "gather that was left out";
      return violation;
    });
  }
  switch (access.kind) {
    case AccessKind::kAllocate:
      buffer = {true, false, -1};
      break;
    case AccessKind::kRead:
      JudgeRead(access, &buffer);
      JudgeVersion(event, access);
      break;
    case AccessKind::kWrite:
      buffer.written = true;
      break;
    case AccessKind::kFree:
      buffer = {false, false, event_};
      break;
  }
}

void UnshardLifecycle::JudgeRead(const Access& access, BufferState* buffer) {
  if (!buffer->live || buffer->written) return;
  if (events_->buffers[access.buffer].role == BufferRole::kInput) return;
  findings_.Add([&] {
    Violation violation =
        BufferViolation("a buffer is read only after something was written to it", access.buffer);
    violation.expected = "a write since its allocation";
    violation.actual = absl::StrCat("read by ", Here(), ", never written");
    violation.likely_cause =
        "a gather, copy or computation that should have filled it was left out";
    return violation;
  });
  buffer->written = true;  // reported once for each allocation
}

void UnshardLifecycle::JudgeVersion(const Event& event, const Access& access) {
  const bool computes = event.kind == EventKind::kCompute;
  if (access.version == updates_) return;
  if (!computes && !SendsParameters(event, events_->ranks.first)) return;
  const BufferInfo& info = events_->buffers[access.buffer];
  if (info.role != BufferRole::kParameter && info.role != BufferRole::kUnshardedParameter) return;
  if (access.version < 0) {
    if (!computes || version_missing_ || info.elements == 0 || !IsUpdated(access.buffer)) return;
    version_missing_ = true;
    findings_.NotObserved(absl::StrCat("which update ", Here(), " of rank ", events_->ranks.first,
                                       " read parameters of was not shown"));
    return;
  }
  if (!IsUpdated(access.buffer)) return;
  findings_.Add([&] {
    Violation violation = BufferViolation(
        computes ? kComputationReadsUpdated : kCollectivesSendUpdated, access.buffer);
    violation.expected = absl::StrCat("version ", updates_);
    violation.actual = absl::StrCat("version ", access.version, " read by ", Here());
    violation.likely_cause =
        !computes    ? "a collective issued before the update that it sends, or an update that "
                       "never reached this buffer"
        : unit_mode_ ? "full parameters kept from before the update, or gathered before it"
                     : "the broadcast, gather or copy after the update never reached this buffer";
    return violation;
  });
}

// Whether the optimizer changes what the buffer holds. Frozen parameters stay at version 0.
// Asked only when a version looks stale or is not known.
bool UnshardLifecycle::IsUpdated(int32_t buffer) const {
  const BufferInfo& info = events_->buffers[buffer];
  if (info.unit >= 0 && static_cast<size_t>(info.unit) < is_trained_.size()) {
    return is_trained_[info.unit] != 0;
  }
  if (info.bucket >= 0 || !has_frozen_) return true;
  for (const RankState& state : observed_->states) {
    if (!state.ranks.Contains(Rank{events_->ranks.first})) continue;
    for (const StateSegment& segment : state.segments) {
      const bool of_buffer = segment.state == StateClass::kParameter && segment.buffer == buffer;
      const bool known =
          segment.tensor >= 0 && static_cast<size_t>(segment.tensor) < run_->model.tensors.size();
      if (of_buffer && known && run_->model.tensors[segment.tensor].trainable) return true;
    }
  }
  return false;
}

void UnshardLifecycle::EndRank() {
  for (size_t i = 0; i < units_.size(); ++i) {
    if (!units_[i].unsharded) continue;
    findings_.Add([&] {
      Violation violation = Base("after the step every unit is sharded", static_cast<int32_t>(i));
      violation.event = units_[i].gather;
      violation.expected = absl::StrCat("a reshard after ", There(units_[i].gather));
      violation.actual = "unsharded at the end of the step";
      violation.likely_cause =
          "a reshard tied to something that did not happen, such as a "
          "gradient of the unit";
      return violation;
    });
  }
  for (size_t b = 0; b < buffers_->size(); ++b) {
    const BufferInfo& info = events_->buffers[b];
    if (!(*buffers_)[b].live || info.role != BufferRole::kUnshardedParameter) continue;
    const bool told = info.unit >= 0 && static_cast<size_t>(info.unit) < units_.size() &&
                      units_[info.unit].unsharded;
    if (told) continue;
    findings_.Add([&] {
      Violation violation =
          BufferViolation("between steps no full parameters are alive", static_cast<int32_t>(b));
      violation.event = -1;
      violation.expected = "a free";
      violation.actual = absl::StrCat(BufferText(run_->model, *events_, b), " is alive");
      violation.likely_cause = "a reshard that does not free the unit's full parameters";
      return violation;
    });
  }
}

Violation UnshardLifecycle::Base(absl::string_view rule, int32_t unit) const {
  Violation violation;
  violation.rule = std::string(rule);
  violation.rank = events_->ranks.first;
  violation.step = observed_->step;
  violation.unit = UnitName(run_->model, unit);
  violation.event = event_;
  return violation;
}

Violation UnshardLifecycle::BufferViolation(absl::string_view rule, int32_t buffer) const {
  const BufferInfo& info = events_->buffers[buffer];
  Violation violation =
      Base(absl::StrCat(rule, ": ", BufferText(run_->model, *events_, buffer)), -1);
  violation.unit = SetName(run_->model, info.unit, info.bucket);
  return violation;
}

}  // namespace

std::unique_ptr<Check> MakeUnshardLifecycle() { return std::make_unique<UnshardLifecycle>(); }

}  // namespace shardproof
