#include "invariants/checks/peak_memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/checks/describe.h"
#include "invariants/checks/issued_items.h"
#include "invariants/closed_forms/closed_forms.h"

namespace shardproof {
namespace {

constexpr size_t kRoles = static_cast<size_t>(BufferRole::kWorkspace) + 1;

// Bytes alive, by role.
class RoleBytes {
 public:
  int64_t& operator[](BufferRole role) { return bytes_[static_cast<size_t>(role)]; }
  int64_t operator[](BufferRole role) const { return bytes_[static_cast<size_t>(role)]; }
  // Of the roles that are model state.
  int64_t model_state() const {
    int64_t sum = 0;
    for (size_t role = 0; role <= static_cast<size_t>(BufferRole::kScalar); ++role) {
      sum += bytes_[role];
    }
    return sum;
  }

  // Of model state, role by role.
  RoleBytes operator-(const RoleBytes& other) const {
    RoleBytes difference;
    for (size_t role = 0; role <= static_cast<size_t>(BufferRole::kScalar); ++role) {
      difference.bytes_[role] = bytes_[role] - other.bytes_[role];
    }
    return difference;
  }
  bool operator==(const RoleBytes&) const = default;

 private:
  std::array<int64_t, kRoles> bytes_{};
};

int64_t BytesOf(const BufferInfo& buffer) { return buffer.elements * DtypeBytes(buffer.dtype); }

// What one rank (the watched one of a group) keeps alive; lasts over the steps.
struct Memory {
  Group ranks;
  bool seen = false;
  std::vector<uint8_t> alive;  // by buffer
  RoleBytes live;
};

class PeakMemory : public Check {
 public:
  absl::string_view name() const override { return "peak_memory"; }
  void Begin(const RunDescription& run) override;
  void Step(const StepObservation& observed, const ReferenceStep* reference) override;
  CheckResult Finish() override;

 private:
  // Where a walk through one rank's step stands.
  struct Walk {
    int64_t step = 0;
    const RankEvents* events = nullptr;
    Memory* memory = nullptr;
    size_t next_item = 0;
    bool in_order = true;  // the items so far are those of the sequence
    RoleBytes reported;    // the difference that was reported last
    int64_t peak = 0;
    int32_t peak_event = -1;
  };

  void CheckRank(const StepObservation& observed, size_t index);
  void StartFromLiveBefore(const Walk& walk);
  void Allocate(const Walk& walk, int32_t event, int32_t buffer);
  void Free(const Walk& walk, int32_t event, int32_t buffer);
  void CheckItem(Walk* walk, int32_t event);
  void CheckPeak(const Walk& walk);
  void CheckEnd(const Walk& walk, const StepObservation& observed);
  void CheckNothingTransientLives(const Walk& walk);

  // The violation that all rules fill in: rank, step, event and unit.
  Violation At(const Walk& walk, int32_t event) const;
  RoleBytes ExpectedRoles(Rank rank, const ExpectedItem& item) const;
  RoleBytes ExpectedAtEnd(Rank rank) const;
  void Compare(const RoleBytes& expected, const RoleBytes& actual, Violation* violation) const;

  Findings findings_{"peak_memory"};
  const RunDescription* run_ = nullptr;
  Mode mode_ = Mode::kReplicated;
  absl::string_view undefined_;
  std::vector<ExpectedItem> sequence_;
  std::vector<ItemKey> keys_;
  std::vector<int64_t> resident_;   // by rank: moments and scalars
  std::vector<StateBytes> states_;  // by rank
  int64_t largest_ = 0;             // of the sequence's live bytes
  RankCoverage coverage_;
  std::vector<Memory> memories_;  // by index in StepObservation::events
};

void PeakMemory::Begin(const RunDescription& run) {
  run_ = &run;
  mode_ = run.sharding.mode;
  undefined_ = NoStepRule(run).empty() ? NoStateRule(run) : NoStepRule(run);
  const ClosedForms forms(run);
  sequence_ = forms.Sequence();
  keys_ = KeysOf(mode_, sequence_);
  for (const ExpectedItem& item : sequence_) largest_ = std::max(largest_, item.live_bytes);
  const int32_t ranks = run.sharding.world_size.value;
  coverage_.Begin(ranks);
  for (int32_t r = 0; r < ranks; ++r) {
    resident_.push_back(forms.ResidentBytes(Rank{r}));
    states_.push_back(forms.State(Rank{r}));
  }
}

void PeakMemory::Step(const StepObservation& observed, const ReferenceStep*) {
  if (!undefined_.empty()) return;
  coverage_.Clear();
  if (memories_.size() < observed.events.size()) memories_.resize(observed.events.size());
  for (size_t i = 0; i < observed.events.size(); ++i) {
    const RankEvents& events = observed.events[i];
    if (events.buffers.empty()) continue;            // rank stays missing
    if (coverage_.Add(events.ranks) >= 0) continue;  // collective_ledger names the rank
    findings_.Observed();
    CheckRank(observed, i);
  }
  if (const int32_t missing = coverage_.Missing(); missing >= 0) {
    findings_.NotObserved(
        absl::StrCat("step ", observed.step, " showed no buffers of rank ", missing));
  }
}

void PeakMemory::CheckRank(const StepObservation& observed, size_t index) {
  Walk walk;
  walk.step = observed.step;
  walk.events = &observed.events[index];
  walk.memory = &memories_[index];
  StartFromLiveBefore(walk);
  const RankEvents& events = *walk.events;
  for (size_t i = 0; i < events.events.size(); ++i) {
    const int32_t event = static_cast<int32_t>(i);
    const absl::Span<const Access> accesses = AccessesOf(events, events.events[i]);
    for (const Access& access : accesses) {
      if (access.kind == AccessKind::kAllocate) Allocate(walk, event, access.buffer);
    }
    const int64_t live = walk.memory->live.model_state();
    if (live > walk.peak) {
      walk.peak = live;
      walk.peak_event = event;
    }
    if (IsItem(events.events[i])) CheckItem(&walk, event);
    for (const Access& access : accesses) {
      if (access.kind == AccessKind::kFree) Free(walk, event, access.buffer);
    }
  }
  CheckPeak(walk);
  CheckNothingTransientLives(walk);
  CheckEnd(walk, observed);
}

Violation PeakMemory::At(const Walk& walk, int32_t event) const {
  Violation violation{.rank = walk.events->ranks.first, .step = walk.step, .event = event};
  if (event >= 0) {
    const Event& at = walk.events->events[event];
    violation.unit = SetName(run_->model, at.unit, at.bucket);
    violation.tensor = TensorName(run_->model, at.tensor);
  }
  return violation;
}

void PeakMemory::StartFromLiveBefore(const Walk& walk) {
  Memory& memory = *walk.memory;
  const RankEvents& events = *walk.events;
  const bool continues =
      memory.seen && memory.ranks == events.ranks && memory.alive.size() == events.buffers.size();
  // Bit 0: alive now. Bit 1: alive at the end of the step before.
  memory.alive.resize(events.buffers.size(), 0);
  for (uint8_t& alive : memory.alive) alive = continues && alive ? 2 : 0;
  memory.live = RoleBytes();
  for (const int32_t buffer : events.live_before) {
    if (BufferOf(events, buffer) == nullptr || (memory.alive[buffer] & 1)) {
      findings_.Add([&] {
        Violation violation = At(walk, -1);
        violation.rule = "what lives before a step is buffers, each listed once";
        violation.actual = BufferText(run_->model, events, buffer);
        return violation;
      });
      continue;
    }
    memory.alive[buffer] |= 1;
    memory.live[events.buffers[buffer].role] += BytesOf(events.buffers[buffer]);
  }
  for (size_t b = 0; b < memory.alive.size(); ++b) {
    const uint8_t alive = memory.alive[b];
    memory.alive[b] = alive & 1;
    if (!continues || alive == 0 || alive == 3) continue;
    findings_.Add([&] {
      Violation violation = At(walk, -1);
      violation.rule = "what lives when a step begins is what lived when the one before ended";
      violation.expected = absl::StrCat(BufferText(run_->model, events, static_cast<int32_t>(b)),
                                        alive == 2 ? " alive" : " not allocated");
      violation.actual = alive == 2 ? "freed between the steps" : "allocated between the steps";
      violation.likely_cause = "work between steps that no event shows";
      return violation;
    });
  }
  memory.ranks = events.ranks;
  memory.seen = true;
}

void PeakMemory::Allocate(const Walk& walk, int32_t event, int32_t buffer) {
  const BufferInfo* info = BufferOf(*walk.events, buffer);
  if (info != nullptr && !walk.memory->alive[buffer]) {
    walk.memory->alive[buffer] = 1;
    walk.memory->live[info->role] += BytesOf(*info);
    return;
  }
  findings_.Add([&] {
    Violation violation = At(walk, event);
    violation.rule = "a buffer is allocated only when it is not alive";
    violation.expected = "a buffer that is not alive";
    violation.actual = absl::StrCat("allocation of ", BufferText(run_->model, *walk.events, buffer),
                                    info == nullptr ? "" : ", which is alive");
    violation.likely_cause = "the free of its last use was lost, or two uses share one buffer";
    return violation;
  });
}

void PeakMemory::Free(const Walk& walk, int32_t event, int32_t buffer) {
  const BufferInfo* info = BufferOf(*walk.events, buffer);
  if (info != nullptr && walk.memory->alive[buffer]) {
    walk.memory->alive[buffer] = 0;
    walk.memory->live[info->role] -= BytesOf(*info);
    return;
  }
  findings_.Add([&] {
    Violation violation = At(walk, event);
    violation.rule = "a buffer is freed only when it is alive";
    violation.expected = "a buffer that is alive";
    violation.actual = absl::StrCat("free of ", BufferText(run_->model, *walk.events, buffer),
                                    info == nullptr ? "" : ", which is not alive");
    violation.likely_cause = "freed twice, or freed by a step that never allocated it";
    return violation;
  });
}

RoleBytes PeakMemory::ExpectedRoles(Rank rank, const ExpectedItem& item) const {
  RoleBytes roles;
  roles[BufferRole::kUnshardedParameter] = item.unsharded_bytes;
  roles[BufferRole::kGradient] = item.gradient_bytes;
  roles[BufferRole::kUnreducedGradient] = item.unreduced_bytes;
  roles[BufferRole::kParameter] =
      item.live_bytes - item.unsharded_bytes - item.gradient_bytes - item.unreduced_bytes;
  roles[BufferRole::kScalar] = states_[rank.value].scalar;
  roles[BufferRole::kOptimizerState] = resident_[rank.value] - states_[rank.value].scalar;
  return roles;
}

RoleBytes PeakMemory::ExpectedAtEnd(Rank rank) const {
  if (sequence_.empty()) return {};
  ExpectedItem boundary = sequence_.back();  // without what its step still releases
  boundary.live_bytes -= boundary.unsharded_bytes + boundary.unreduced_bytes;
  boundary.unsharded_bytes = boundary.unreduced_bytes = 0;
  return ExpectedRoles(rank, boundary);
}

// What too many bytes of a role most often mean, and too few.
absl::string_view CauseOf(BufferRole role, bool more) {
  switch (role) {
    case BufferRole::kParameter:
      return more ? "parameters are kept whole, or twice, where the mode keeps a shard"
                  : "a shard of parameters is missing, or its padding is";
    case BufferRole::kUnshardedParameter:
      return more ? "a unit is resharded too late or gathered too early; look at the reshard "
                    "before this event"
                  : "a unit is resharded before this event needs it, or was never gathered";
    case BufferRole::kGradient:
      return more ? "reduced gradients are whole where the mode keeps a shard, or were not freed "
                    "when the step began"
                  : "a reduced gradient is freed too early, or has no buffer of its own";
    case BufferRole::kUnreducedGradient:
      return more ? "full gradients are released too late; look at the reduction before this event"
                  : "a full gradient is released before its reduction, or is never allocated";
    case BufferRole::kOptimizerState:
      return more ? "moments are kept whole where the mode keeps a shard"
                  : "a moment is missing on this rank";
    default:
      return "step counters are not one for each tensor with state on the rank";
  }
}

void PeakMemory::Compare(const RoleBytes& expected, const RoleBytes& actual,
                         Violation* violation) const {
  const int64_t all_expected = expected.model_state();
  const int64_t all_actual = actual.model_state();
  violation->expected = absl::StrCat(all_expected, " bytes");
  violation->actual = absl::StrCat(all_actual, " bytes");
  if (all_expected != 0) violation->ratio = static_cast<double>(all_actual) / all_expected;
  int64_t largest = 0;
  for (size_t i = 0; i < kRoles && IsModelState(static_cast<BufferRole>(i)); ++i) {
    const BufferRole role = static_cast<BufferRole>(i);
    const int64_t difference = actual[role] - expected[role];
    if (difference == 0) continue;
    absl::StrAppend(&violation->actual, ", ", Name(role), " ", actual[role], " instead of ",
                    expected[role]);
    if (std::abs(difference) <= largest) continue;
    largest = std::abs(difference);
    violation->likely_cause = std::string(CauseOf(role, difference > 0));
  }
}

void PeakMemory::CheckItem(Walk* walk, int32_t event) {
  walk->in_order = walk->in_order && walk->next_item < keys_.size() &&
                   KeyOf(mode_, walk->events->events[event]) == keys_[walk->next_item];
  if (!walk->in_order) return;
  const size_t at = walk->next_item++;
  const ExpectedItem& item = sequence_[at];
  const Rank rank{walk->events->ranks.first};
  const RoleBytes& live = walk->memory->live;
  const RoleBytes expected = ExpectedRoles(rank, item);
  const RoleBytes difference = live - expected;
  if (difference == walk->reported) return;
  walk->reported = difference;
  if (difference == RoleBytes()) return;  // what was too much is gone again
  findings_.Add([&] {
    Violation violation = At(*walk, event);
    violation.rule =
        absl::StrCat("live bytes at ", ItemText(*run_, keys_[at]), " are those of the mode");
    Compare(expected, live, &violation);
    return violation;
  });
}

void PeakMemory::CheckPeak(const Walk& walk) {
  const int64_t expected = largest_ + resident_[walk.events->ranks.first];
  if (walk.peak == expected) return;
  findings_.Add([&] {
    Violation violation = At(walk, walk.peak_event);
    violation.rule = "the peak of live bytes is that of the mode";
    violation.expected = absl::StrCat(expected, " bytes");
    violation.actual = absl::StrCat(walk.peak, " bytes");
    if (expected != 0) violation.ratio = static_cast<double>(walk.peak) / expected;
    violation.likely_cause =
        walk.peak > expected
            ? "buffers overlap that the mode keeps apart; the peak is at this event"
            : "the mode's buffers do not overlap as its prefetch says, or some are not shown";
    return violation;
  });
}

void PeakMemory::CheckNothingTransientLives(const Walk& walk) {
  const RoleBytes& live = walk.memory->live;
  if (live[BufferRole::kUnshardedParameter] == 0 && live[BufferRole::kUnreducedGradient] == 0) {
    return;
  }
  for (size_t b = 0; b < walk.memory->alive.size(); ++b) {
    const BufferInfo& info = walk.events->buffers[b];
    const bool transient =
        info.role == BufferRole::kUnshardedParameter || info.role == BufferRole::kUnreducedGradient;
    if (!transient || !walk.memory->alive[b]) continue;
    findings_.Add([&] {
      Violation violation = At(walk, -1);
      violation.rule = "no full unit and no unreduced gradient outlives its step";
      violation.unit = SetName(run_->model, info.unit, info.bucket);
      violation.expected = "freed within the step";
      violation.actual =
          absl::StrCat(BufferText(run_->model, *walk.events, static_cast<int32_t>(b)), ", ",
                       BytesOf(info), " bytes, alive at its end");
      violation.likely_cause = std::string(CauseOf(info.role, /*more=*/true));
      return violation;
    });
  }
}

void PeakMemory::CheckEnd(const Walk& walk, const StepObservation& observed) {
  const Rank rank{walk.events->ranks.first};
  const int64_t live = walk.memory->live.model_state();
  const RoleBytes expected = ExpectedAtEnd(rank);
  // A sequence without items does not say which roles the steady state has.
  const bool as_expected = sequence_.empty() ? live == states_[rank.value].steady()
                                             : walk.memory->live - expected == RoleBytes();
  if (!as_expected) {
    findings_.Add([&] {
      Violation violation = At(walk, -1);
      violation.rule = "what lives after a step is the steady state of the mode";
      if (!sequence_.empty()) Compare(expected, walk.memory->live, &violation);
      return violation;
    });
  }
  for (const RankState& state : observed.states) {
    if (!StandsFor(state.ranks, rank)) continue;
    if (state.bytes.steady() == live) return;
    findings_.Add([&] {
      Violation violation = At(walk, -1);
      violation.rule = "what lives after a step is what the rank's inventory states";
      violation.expected = absl::StrCat(state.bytes.steady(), " bytes, as stated");
      violation.actual = absl::StrCat(live, " bytes alive");
      violation.likely_cause = "the inventory leaves buffers out, or counts freed ones";
      return violation;
    });
    return;
  }
}

CheckResult PeakMemory::Finish() {
  if (!undefined_.empty()) findings_.NotObserved(undefined_);
  return findings_.Finish();
}

}  // namespace

std::unique_ptr<Check> MakePeakMemory() { return std::make_unique<PeakMemory>(); }

}  // namespace shardproof
