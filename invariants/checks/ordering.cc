#include "invariants/checks/ordering.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/checks/describe.h"
#include "invariants/checks/happens_before.h"

namespace shardproof {
namespace {

constexpr int kTiers = 2;

bool IsExclusive(AccessKind kind) { return kind != AccessKind::kRead; }
bool IsWhole(AccessKind kind) { return kind == AccessKind::kAllocate || kind == AccessKind::kFree; }

bool Conflict(const Access& a, const Access& b) {
  if (!IsExclusive(a.kind) && !IsExclusive(b.kind)) return false;
  return IsWhole(a.kind) || IsWhole(b.kind) || a.range.Overlaps(b.range);
}

StreamId Other(StreamId stream) {
  return stream == StreamId::kCompute ? StreamId::kCommunication : StreamId::kCompute;
}

class Ordering final : public Check {
 public:
  absl::string_view name() const override { return "ordering"; }
  void Begin(const RunDescription& run) override { run_ = &run; }
  void Step(const StepObservation& observed, const ReferenceStep* reference) override;
  CheckResult Finish() override { return findings_.Finish(); }

 private:
  // An access in the list of its buffer and stream, the latest first.
  struct Use {
    int32_t event = -1;
    const Access* access = nullptr;
    int32_t earlier = -1;  // index into uses_
  };

  bool HasEvidence(const StepObservation& observed);
  bool UsesBuffers(const Event& event) const;
  void ReportUnused(const Event& event);
  void JudgeMismatch();
  void JudgeRank(int32_t entry);
  void JudgeWaits(const Event& event);
  void JudgeConflicts(const Event& event, const Access& access);
  void JudgeReuse(const Event& event, const Access& access);
  void Remember(const Event& event, const Access& access);
  // In the first pass a violation is not reported yet.
  bool Probe() {
    suspicious_ |= probing_;
    return probing_;
  }
  int32_t& Latest(int32_t buffer, StreamId stream) {
    return latest_[buffer * kStreams + static_cast<int>(stream)];
  }

  Violation Base(absl::string_view rule, const RankEvents& events, int32_t event) const;
  void ReportConflict(const Access& access, const Use& use);
  std::string MissingWait(int32_t earlier) const;
  std::string CollectiveText(int32_t entry, int32_t event) const;

  const RunDescription* run_ = nullptr;
  const StepObservation* observed_ = nullptr;
  HappensBefore order_;

  bool unused_ = false;      // an event that uses nothing was reported
  bool probing_ = false;     // first pass: only whether there is something to report
  bool suspicious_ = false;  // there is

  // Of the rank that is being judged.
  const RankEvents* events_ = nullptr;
  int32_t entry_ = -1;
  int32_t event_ = -1;
  std::vector<Use> uses_;
  std::vector<int32_t> latest_;    // by buffer and stream: index into uses_
  std::vector<int32_t> reported_;  // by buffer: the last event with a violation
  // The last release of each stream and tier; -1: none.
  std::array<std::array<int32_t, kTiers>, kStreams> released_;
  std::array<std::array<int32_t, kTiers>, kStreams> released_buffer_;
  bool reuse_reported_ = false;  // of this event
  Findings findings_{"ordering"};
};

// Whether an event must use some buffer.
bool Ordering::UsesBuffers(const Event& event) const {
  switch (event.kind) {
    case EventKind::kCollective:
      return event.collective != CollectiveKind::kBarrier && event.elements > 0;
    case EventKind::kLocal:
      return true;
    case EventKind::kCompute:
      break;
    default:
      return false;
  }
  const std::vector<Stage>& stages = run_->model.stages;
  const int64_t end =
      std::min(static_cast<int64_t>(stages.size()), int64_t{event.stage} + event.stage_count);
  for (int64_t stage = std::max(0, event.stage); stage < end; ++stage) {
    for (const int32_t tensor : stages[stage].tensors) {
      if (Elements(run_->model.tensors[tensor]) > 0) return true;
    }
  }
  return false;
}

void Ordering::ReportUnused(const Event& event) {
  if (unused_ || !UsesBuffers(event)) return;
  unused_ = true;
  findings_.NotObserved(absl::StrCat("which buffers ", EventText(run_->model, *events_, event_),
                                     " of rank ", events_->ranks.first, " uses was not shown"));
}

bool Ordering::HasEvidence(const StepObservation& observed) {
  if (observed.events.empty()) {
    findings_.NotObserved("no events were shown");
    return false;
  }
  if (RanksShown(observed.events) != run_->sharding.world_size.value) {
    findings_.NotObserved("the events of some ranks were not shown");
  }
  for (const RankEvents& events : observed.events) {
    if (!events.accesses.empty() || events.events.empty()) continue;
    findings_.NotObserved("which buffers the events use was not shown");
  }
  return true;
}

void Ordering::Step(const StepObservation& observed, const ReferenceStep*) {
  if (!HasEvidence(observed)) return;
  findings_.Observed();
  observed_ = &observed;
  order_.Build(observed.events);
  const int32_t entries = static_cast<int32_t>(observed.events.size());
  suspicious_ = false;
  probing_ = true;
  for (int32_t i = 0; i < entries && !suspicious_; ++i) JudgeRank(i);
  // What seems unordered on its rank may be ordered by way of others.
  if (suspicious_) order_.Refine();
  probing_ = false;
  if (order_.mismatch().found) JudgeMismatch();
  for (int32_t i = 0; i < entries && suspicious_; ++i) JudgeRank(i);
}

std::string Ordering::CollectiveText(int32_t entry, int32_t event) const {
  const RankEvents& events = observed_->events[entry];
  const std::string rank = absl::StrCat("rank ", events.ranks.first);
  if (event < 0) return absl::StrCat(rank, " issues no such collective");
  return absl::StrCat(rank, " issues ", EventText(run_->model, events, event), ", ",
                      Name(events.events[event].purpose), ", ", events.events[event].elements,
                      " elements");
}

void Ordering::JudgeMismatch() {
  findings_.Add([&] {
    const HappensBefore::Mismatch& mismatch = order_.mismatch();
    Violation violation = Base("ranks issue the collectives of a group in the same order",
                               observed_->events[mismatch.entry], mismatch.event);
    const Event& event = observed_->events[mismatch.entry].events[mismatch.event];
    violation.unit = SetName(run_->model, event.unit, event.bucket);
    violation.actual = CollectiveText(mismatch.entry, mismatch.event);
    if (mismatch.stalled) {
      violation.expected = "collectives that every member can reach";
      violation.likely_cause =
          "collectives of two groups or streams wait for each other; from "
          "here on they order nothing in this step";
    } else {
      violation.expected = CollectiveText(mismatch.other, mismatch.other_event);
      violation.likely_cause =
          "ranks issue collectives in different orders or numbers, which "
          "hangs or mixes data; from here on they order nothing in this step";
    }
    return violation;
  });
}

void Ordering::JudgeRank(int32_t entry) {
  entry_ = entry;
  events_ = &observed_->events[entry];
  uses_.clear();
  latest_.assign(events_->buffers.size() * kStreams, -1);
  reported_.assign(events_->buffers.size(), -1);
  for (auto& tiers : released_) tiers.fill(-1);
  event_ = -1;
  for (const Event& event : events_->events) {
    ++event_;
    reuse_reported_ = false;
    JudgeWaits(event);
    bool used = false;
    for (const Access& access : AccessesOf(*events_, event)) {
      if (BufferOf(*events_, access.buffer) == nullptr) continue;  // unshard_lifecycle's rule
      used |= access.kind == AccessKind::kRead || access.kind == AccessKind::kWrite;
      JudgeConflicts(event, access);
      if (access.kind == AccessKind::kAllocate) JudgeReuse(event, access);
      Remember(event, access);
    }
    if (!used) ReportUnused(event);
  }
}

void Ordering::Remember(const Event& event, const Access& access) {
  int32_t& latest = Latest(access.buffer, event.stream);
  uses_.push_back({event_, &access, latest});
  latest = static_cast<int32_t>(uses_.size()) - 1;
  if (access.kind != AccessKind::kFree) return;
  const int stream = static_cast<int>(event.stream);
  const int tier = static_cast<int>(events_->buffers[access.buffer].tier);
  released_[stream][tier] = event_;
  released_buffer_[stream][tier] = access.buffer;
}

void Ordering::JudgeWaits(const Event& event) {
  for (const int32_t wait : WaitsOf(*events_, event)) {
    if (wait >= 0 && wait < event_) continue;
    if (Probe()) return;
    findings_.Add([&] {
      Violation violation = Base("a wait names an earlier event of its rank", *events_, event_);
      violation.unit = SetName(run_->model, event.unit, event.bucket);
      violation.expected = absl::StrCat("an event before ", event_);
      violation.actual =
          absl::StrCat("event ", wait, " in ", EventText(run_->model, *events_, event_));
      return violation;
    });
  }
}

// Accesses of the same stream are ordered. Of the other stream's, those before the first
// that has ended have ended too, so that the walk stops there: on a correct step at once.
void Ordering::JudgeConflicts(const Event& event, const Access& access) {
  const StreamId other = Other(event.stream);
  const int32_t ended = order_.Ended(entry_, event_, other);
  for (int32_t i = Latest(access.buffer, other); i >= 0; i = uses_[i].earlier) {
    const Use& use = uses_[i];
    if (order_.Place(entry_, use.event) < ended) return;
    if (!Conflict(access, *use.access) || order_.Before(entry_, event_, use.event)) continue;
    if (Probe()) return;
    if (reported_[access.buffer] != event_) ReportConflict(access, use);
    reported_[access.buffer] = event_;
    return;
  }
}

void Ordering::JudgeReuse(const Event& event, const Access& access) {
  const StreamId other = Other(event.stream);
  const int tier = static_cast<int>(events_->buffers[access.buffer].tier);
  const int32_t release = released_[static_cast<int>(other)][tier];
  if (release < 0 || order_.Before(entry_, release, event_) || reuse_reported_) return;
  if (Probe()) return;
  reuse_reported_ = true;
  findings_.Add([&] {
    const BufferInfo& info = events_->buffers[access.buffer];
    Violation violation =
        Base("an allocation is ordered after every release issued before it", *events_, event_);
    violation.unit = SetName(run_->model, info.unit, info.bucket);
    violation.expected = absl::StrCat(
        EventText(run_->model, *events_, release), " ended, which frees ",
        BufferText(run_->model, *events_, released_buffer_[static_cast<int>(other)][tier]));
    violation.actual =
        absl::StrCat("an allocation of ", BufferText(run_->model, *events_, access.buffer),
                     " that may get its memory while it is in use");
    violation.likely_cause = MissingWait(release);
    return violation;
  });
}

void Ordering::ReportConflict(const Access& access, const Use& use) {
  findings_.Add([&] {
    const BufferInfo& info = events_->buffers[access.buffer];
    Violation violation =
        Base("accesses of a buffer that conflict are ordered by waits", *events_, event_);
    violation.unit = SetName(run_->model, info.unit, info.bucket);
    violation.expected = absl::StrCat(EventText(run_->model, *events_, use.event), " ended (",
                                      Name(use.access->kind), ")");
    violation.actual =
        absl::StrCat(Name(access.kind), " of ", BufferText(run_->model, *events_, access.buffer),
                     " may run before or beside it");
    violation.likely_cause = MissingWait(use.event);
    return violation;
  });
}

std::string Ordering::MissingWait(int32_t earlier) const {
  return absl::StrCat(EventText(run_->model, *events_, event_), " needs a wait on ",
                      EventText(run_->model, *events_, earlier));
}

Violation Ordering::Base(absl::string_view rule, const RankEvents& events, int32_t event) const {
  Violation violation;
  violation.rule = std::string(rule);
  violation.rank = events.ranks.first;
  violation.step = observed_->step;
  violation.event = event;
  return violation;
}

}  // namespace

std::unique_ptr<Check> MakeOrdering() { return std::make_unique<Ordering>(); }

}  // namespace shardproof
