#include "invariants/checks/padding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "invariants/checks/describe.h"
#include "invariants/checks/float_bits.h"
#include "invariants/closed_forms/closed_forms.h"
#include "invariants/observation/padding_value.h"

namespace shardproof {
namespace {

constexpr StateClass kClasses[] = {StateClass::kExpAvg, StateClass::kExpAvgSq,
                                   StateClass::kReducedGradient, StateClass::kParameter};

// Elements of a tensor that one rank shows.
struct Run {
  int32_t tensor = -1;
  int32_t rank = -1;
  ElementRange range;
};

// Where a segment lies in its buffer.
struct Extent {
  int32_t buffer = -1;
  int64_t offset = 0;
  int64_t count = 0;
  bool operator<(const Extent& other) const {
    return buffer != other.buffer ? buffer < other.buffer : offset < other.offset;
  }
};

// Table of run_description.h: what a mode keeps whole on each rank.
bool WholeOnEachRank(Mode mode, StateClass state) {
  if (mode == Mode::kReplicated) return true;
  const bool units = mode == Mode::kShardGradOp || mode == Mode::kFullShard;
  if (state == StateClass::kParameter) return !units;
  return state == StateClass::kReducedGradient && !units && mode != Mode::kZero2;
}

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

// A fingerprint of who shows which elements where, so that a layout is judged once.
uint64_t LayoutFingerprint(const StepObservation& observed) {
  uint64_t hash = 1;
  for (const RankState& state : observed.states) {
    hash = Mix(hash, static_cast<uint64_t>(state.ranks.first) << 32 ^ state.segments.size());
    hash = Mix(hash, static_cast<uint64_t>(state.ranks.stride) << 32 ^ state.ranks.count);
    for (const StateSegment& segment : state.segments) {
      // The products do not wait for each other, only their sum for the segment before.
      const uint64_t where = static_cast<uint64_t>(segment.state) << 60 ^
                             static_cast<uint64_t>(static_cast<uint32_t>(segment.tensor)) << 28 ^
                             static_cast<uint32_t>(segment.buffer);
      hash = Mix(hash, where * 0xbf58476d1ce4e5b9u +
                           static_cast<uint64_t>(segment.range.first) * 0x94d049bb133111ebu +
                           static_cast<uint64_t>(segment.range.count) * 0xd6e8feb86659fd93u +
                           static_cast<uint64_t>(segment.buffer_offset) * 0xa0761d6478bd642fu);
    }
  }
  return hash;
}

bool ShowsSegments(const StepObservation& observed) {
  for (const RankState& state : observed.states) {
    if (!state.segments.empty()) return true;
  }
  return false;
}

std::string RangeText(int64_t first, int64_t end) {
  return end == first + 1 ? absl::StrCat("element ", first)
                          : absl::StrCat("elements ", first, " to ", end - 1);
}

class PaddingCheck final : public Check {
 public:
  absl::string_view name() const override { return "padding"; }
  void Begin(const RunDescription& run) override;
  void Step(const StepObservation& observed, const ReferenceStep* reference) override;
  CheckResult Finish() override;

 private:
  // Coverage.
  void JudgeRanks();
  void JudgeSegments(const RankState& state);
  void JudgeClass(StateClass state_class);
  void CollectRuns(const RankState& state, StateClass state_class, int32_t first_rank,
                   int32_t ranks);
  bool CoversInOrder(StateClass state_class, int32_t first_rank, int32_t ranks);
  void SortRuns();
  void JudgeCoverage(StateClass state_class, int32_t rank);
  void JudgeTensor(StateClass state_class, int32_t tensor, absl::Span<const Run> runs,
                   int32_t rank);
  void JudgeOwner(StateClass state_class, const Run& run);
  bool IsOwner(const Run& run, int64_t element) const;
  bool Covers(StateClass state_class, int32_t tensor) const;
  // Offsets.
  void JudgeBuffers(const RankState& state);
  void JudgeExtents(const RankState& state, absl::Span<const Extent> extents);
  bool FillsBuffer(const RankState& state, const BufferInfo& info, int64_t end) const;
  // Inert.
  void JudgeValues(const RankState& state);
  void JudgePaddingValues(const RankState& state, const StateSegment& segment);
  void JudgeElements(const RankState& state, const StateSegment& segment);

  Violation Base(absl::string_view rule, int32_t rank) const;
  // The buffer in words; fills in the violation's unit.
  std::string NameBuffer(const RankState& state, int32_t buffer, Violation* violation) const;
  std::string OwnerText(int32_t tensor, int64_t element) const;
  void ReportHole(StateClass state_class, int32_t tensor, int64_t first, int64_t end, int32_t rank);
  void ReportTwice(StateClass state_class, const Run& run, int64_t end, int32_t other);
  void ReportExtent(const RankState& state, int32_t buffer, const std::string& expected,
                    const std::string& actual);

  const RunDescription* run_ = nullptr;
  std::optional<ClosedForms> forms_;  // made when the first layout is shown
  std::vector<int64_t> elements_;
  std::array<bool, 4> shown_classes_ = {};  // by StateClass
  const StepObservation* observed_ = nullptr;
  bool shown_ = false;
  bool has_padding_ = false;
  bool padding_values_shown_ = false;
  uint64_t fingerprint_ = 0;
  std::vector<Run> runs_;  // of one class, by tensor and first element once sorted
  std::vector<Run> unsorted_;
  std::vector<int64_t> next_;    // by tensor: the element that its next run must begin with
  std::vector<size_t> ends_;     // by tensor: where its runs end in runs_
  std::vector<Extent> extents_;  // of one state
  std::vector<char> seen_;       // by rank
  Findings findings_{"padding"};
};

void PaddingCheck::Begin(const RunDescription& run) {
  run_ = &run;
  elements_ = TensorElements(run.model);
}

void PaddingCheck::Step(const StepObservation& observed, const ReferenceStep*) {
  if (!ShowsSegments(observed)) return;
  findings_.Observed();
  observed_ = &observed;
  const uint64_t fingerprint = LayoutFingerprint(observed);
  if (!shown_ || fingerprint != fingerprint_) {
    shown_ = true;
    fingerprint_ = fingerprint;
    if (!forms_.has_value()) forms_.emplace(*run_);
    JudgeRanks();
    shown_classes_ = {};
    for (const RankState& state : observed.states) {
      has_padding_ |= state.bytes.padding > 0;
      JudgeSegments(state);
    }
    for (const StateClass state_class : kClasses) JudgeClass(state_class);
    for (const RankState& state : observed.states) JudgeBuffers(state);
  }
  for (const RankState& state : observed.states) JudgeValues(state);
}

CheckResult PaddingCheck::Finish() {
  if (!shown_) findings_.NotObserved("no segments of the state were shown");
  if (has_padding_ && !padding_values_shown_) {
    findings_.Note("values of padding were not shown: ownership and offsets only");
  }
  return findings_.Finish();
}

Violation PaddingCheck::Base(absl::string_view rule, int32_t rank) const {
  Violation violation;
  violation.rule = std::string(rule);
  violation.rank = rank;
  violation.step = observed_->step;
  return violation;
}

std::string PaddingCheck::NameBuffer(const RankState& state, int32_t buffer,
                                     Violation* violation) const {
  const RankEvents* events = EventsOf(*observed_, Rank{state.ranks.first});
  const BufferInfo* info = events == nullptr ? nullptr : BufferOf(*events, buffer);
  if (info == nullptr) return absl::StrCat("buffer ", buffer);
  violation->unit = SetName(run_->model, info->unit, info->bucket);
  return BufferText(run_->model, *events, buffer);
}

// A rank that is missing would make a hole that no rule of whole classes sees.
void PaddingCheck::JudgeRanks() {
  const int32_t world = run_->sharding.world_size.value;
  seen_.assign(world, 0);
  for (const RankState& state : observed_->states) {
    for (int32_t i = 0; i < state.ranks.count; ++i) {
      const int32_t rank = state.ranks.member(i).value;
      if (rank >= 0 && rank < world && seen_[rank] == 0) {
        seen_[rank] = 1;
        continue;
      }
      findings_.Add([&] {
        Violation violation = Base("every rank of the world shows its state once", rank);
        violation.expected = absl::StrCat("ranks 0 to ", world - 1, ", each once");
        violation.actual = absl::StrCat("rank ", rank, rank < world ? " twice" : "");
        return violation;
      });
    }
  }
  const auto missing = std::find(seen_.begin(), seen_.end(), 0);
  if (missing == seen_.end()) return;
  findings_.Add([&] {
    const int32_t rank = static_cast<int32_t>(missing - seen_.begin());
    Violation violation = Base("every rank of the world shows its state once", rank);
    violation.expected = absl::StrCat("ranks 0 to ", world - 1, ", each once");
    violation.actual = absl::StrCat("nothing of rank ", rank);
    violation.likely_cause = "the trainer does not show this rank; an empty shard is still shown";
    return violation;
  });
}

bool PaddingCheck::Covers(StateClass state_class, int32_t tensor) const {
  return state_class == StateClass::kParameter || run_->model.tensors[tensor].trainable;
}

void PaddingCheck::JudgeSegments(const RankState& state) {
  for (const StateSegment& segment : state.segments) {
    shown_classes_[static_cast<size_t>(segment.state)] = true;
    if (segment.tensor == -1) {
      has_padding_ |= segment.range.count > 0;
      continue;
    }
    if (!LiesInTensor(segment, elements_)) {
      findings_.Add([&] {
        Violation violation = Base("a segment lies within its tensor", state.ranks.first);
        violation.tensor = TensorName(run_->model, segment.tensor);
        violation.element = segment.range.first;
        violation.expected = "a range within the tensor's elements";
        violation.actual = absl::StrCat(Name(segment.state), " from element ", segment.range.first,
                                        ", ", segment.range.count, " of them");
        violation.likely_cause = "padded and logical lengths were mixed";
        return violation;
      });
    } else if (segment.range.count > 0 && !Covers(segment.state, segment.tensor)) {
      findings_.Add([&] {
        Violation violation =
            Base("a frozen tensor has neither gradient nor moments", state.ranks.first);
        violation.tensor = TensorName(run_->model, segment.tensor);
        violation.expected = "padding in its place, or nothing";
        violation.actual = std::string(Name(segment.state));
        return violation;
      });
    }
  }
}

void PaddingCheck::JudgeClass(StateClass state_class) {
  if (!shown_classes_[static_cast<size_t>(state_class)]) return;
  const int32_t world = run_->sharding.world_size.value;
  if (WholeOnEachRank(run_->sharding.mode, state_class)) {
    for (const RankState& state : observed_->states) {
      runs_.clear();
      CollectRuns(state, state_class, state.ranks.first, 1);
      JudgeCoverage(state_class, state.ranks.first);
    }
    return;
  }
  const int32_t group = ShardCount(run_->sharding);
  for (int32_t first = 0; first < world; first += group) {
    if (CoversInOrder(state_class, first, group)) continue;
    runs_.clear();
    for (const RankState& state : observed_->states) {
      CollectRuns(state, state_class, first, group);
    }
    JudgeCoverage(state_class, -1);
  }
}

// Adds what the state's members among the ranks [first_rank, first_rank + ranks) show.
void PaddingCheck::CollectRuns(const RankState& state, StateClass state_class, int32_t first_rank,
                               int32_t ranks) {
  for (int32_t i = 0; i < state.ranks.count; ++i) {
    const int32_t rank = state.ranks.member(i).value;
    if (rank < first_rank || rank >= first_rank + ranks) continue;
    for (const StateSegment& segment : state.segments) {
      if (segment.state != state_class || segment.range.count <= 0) continue;
      if (!LiesInTensor(segment, elements_) || !Covers(state_class, segment.tensor)) continue;
      runs_.push_back({segment.tensor, rank, segment.range});
    }
  }
}

// Whether the ranks, in the order shown, hold each tensor's runs one after the other without
// hole or overlap, each on its owner. Layouts mostly do, and then nothing needs collecting:
// there may be millions of runs. False says nothing yet.
bool PaddingCheck::CoversInOrder(StateClass state_class, int32_t first_rank, int32_t ranks) {
  next_.assign(elements_.size(), 0);
  for (const RankState& state : observed_->states) {
    for (int32_t i = 0; i < state.ranks.count; ++i) {
      const int32_t rank = state.ranks.member(i).value;
      if (rank < first_rank || rank >= first_rank + ranks) continue;
      for (const StateSegment& segment : state.segments) {
        if (segment.state != state_class || segment.range.count <= 0) continue;
        if (!LiesInTensor(segment, elements_) || !Covers(state_class, segment.tensor)) continue;
        const Run run = {segment.tensor, rank, segment.range};
        if (run.range.first != next_[run.tensor]) return false;
        if (!IsOwner(run, run.range.first) || !IsOwner(run, run.range.end() - 1)) return false;
        next_[run.tensor] = run.range.end();
      }
    }
  }
  for (size_t t = 0; t < elements_.size(); ++t) {
    if (Covers(state_class, static_cast<int32_t>(t)) && next_[t] != elements_[t]) return false;
  }
  return true;
}

// By tensor in linear time, for there may be millions of runs; those of one tensor are few and
// mostly in order already. Afterwards ends_[t] is where the runs of tensor t end.
void PaddingCheck::SortRuns() {
  ends_.assign(elements_.size() + 1, 0);
  for (const Run& run : runs_) ++ends_[run.tensor + 1];
  for (size_t t = 1; t < ends_.size(); ++t) ends_[t] += ends_[t - 1];
  unsorted_.swap(runs_);
  runs_.resize(unsorted_.size());
  for (const Run& run : unsorted_) runs_[ends_[run.tensor]++] = run;
  const auto by_first = [](const Run& a, const Run& b) { return a.range.first < b.range.first; };
  size_t begin = 0;
  for (size_t t = 0; t < elements_.size(); ++t) {
    const auto first = runs_.begin() + begin;
    const auto end = runs_.begin() + ends_[t];
    if (!std::is_sorted(first, end, by_first)) std::stable_sort(first, end, by_first);
    begin = ends_[t];
  }
}

void PaddingCheck::JudgeCoverage(StateClass state_class, int32_t rank) {
  SortRuns();
  size_t begin = 0;
  for (size_t t = 0; t < elements_.size(); ++t) {
    const int32_t tensor = static_cast<int32_t>(t);
    const absl::Span<const Run> runs(runs_.data() + begin, ends_[t] - begin);
    begin = ends_[t];
    if (Covers(state_class, tensor)) JudgeTensor(state_class, tensor, runs, rank);
  }
}

// `rank`: the one that must hold the whole tensor, -1 when the ranks share it. The first
// thing wrong with a tensor is reported and the rest left out: it mostly follows from it.
void PaddingCheck::JudgeTensor(StateClass state_class, int32_t tensor, absl::Span<const Run> runs,
                               int32_t rank) {
  int64_t next = 0;
  int32_t holder = -1;  // of the element before `next`
  for (const Run& run : runs) {
    if (run.range.first > next) {
      return ReportHole(state_class, tensor, next, run.range.first, rank);
    }
    if (run.range.first < next) return ReportTwice(state_class, run, next, holder);
    if (rank < 0 && (!IsOwner(run, run.range.first) || !IsOwner(run, run.range.end() - 1))) {
      return JudgeOwner(state_class, run);
    }
    next = run.range.end();
    holder = run.rank;
  }
  if (next < elements_[tensor]) ReportHole(state_class, tensor, next, elements_[tensor], rank);
}

// A rank owns one range of a tensor (closed_forms.h), so that both ends speak for the run.
// Closed forms name the rank of the first sharding group.
bool PaddingCheck::IsOwner(const Run& run, int64_t element) const {
  const int32_t owner = forms_->Owner(run.tensor, element).value;
  return owner < 0 || owner == run.rank % ShardCount(run_->sharding);
}

void PaddingCheck::JudgeOwner(StateClass state_class, const Run& run) {
  const bool first = !IsOwner(run, run.range.first);
  const int64_t element = first ? run.range.first : run.range.end() - 1;
  findings_.Add([&] {
    Violation violation = Base("an element lies on the rank that owns it", run.rank);
    violation.tensor = TensorName(run_->model, run.tensor);
    violation.element = element;
    violation.expected = OwnerText(run.tensor, element);
    violation.actual = absl::StrCat(Name(state_class), " on rank ", run.rank);
    violation.likely_cause =
        "shards cut by other lengths than the layout's: see its rounding, "
        "alignment and order of tensors";
    return violation;
  });
}

std::string PaddingCheck::OwnerText(int32_t tensor, int64_t element) const {
  const int32_t owner = forms_->Owner(tensor, element).value;
  return owner < 0 ? "every rank" : absl::StrCat("rank ", owner);
}

void PaddingCheck::ReportHole(StateClass state_class, int32_t tensor, int64_t first, int64_t end,
                              int32_t rank) {
  findings_.Add([&] {
    const bool whole = rank >= 0;
    Violation violation = Base(whole ? "every rank holds every element exactly once"
                                     : "every element is held exactly once over the ranks",
                               whole ? rank : forms_->Owner(tensor, first).value);
    violation.tensor = TensorName(run_->model, tensor);
    violation.element = first;
    violation.expected = whole ? absl::StrCat("once on rank ", rank)
                               : absl::StrCat("once, on ", OwnerText(tensor, first));
    violation.actual = absl::StrCat("no ", Name(state_class), " of ", RangeText(first, end));
    violation.likely_cause =
        "a shard cut too short, a tensor left out of its unit or bucket, or an empty shard's "
        "neighbour lost";
    return violation;
  });
}

void PaddingCheck::ReportTwice(StateClass state_class, const Run& run, int64_t end, int32_t other) {
  findings_.Add([&] {
    Violation violation = Base(run.rank == other ? "every rank holds every element exactly once"
                                                 : "every element is held exactly once over the "
                                                   "ranks",
                               run.rank);
    violation.tensor = TensorName(run_->model, run.tensor);
    violation.element = run.range.first;
    violation.expected = "once";
    violation.actual = absl::StrCat(Name(state_class), " of ",
                                    RangeText(run.range.first, std::min(end, run.range.end())),
                                    " on rank ", other, " and again on rank ", run.rank);
    violation.likely_cause = "shards that overlap, or a tensor in two units or buckets";
    return violation;
  });
}

void PaddingCheck::JudgeBuffers(const RankState& state) {
  extents_.clear();
  for (const StateSegment& segment : state.segments) {
    if (segment.buffer < 0 || segment.range.count <= 0) continue;
    extents_.push_back({segment.buffer, segment.buffer_offset, segment.range.count});
  }
  if (!std::is_sorted(extents_.begin(), extents_.end())) {
    std::sort(extents_.begin(), extents_.end());
  }
  for (size_t begin = 0; begin < extents_.size();) {
    size_t end = begin + 1;
    while (end < extents_.size() && extents_[end].buffer == extents_[begin].buffer) ++end;
    JudgeExtents(state, absl::MakeConstSpan(extents_).subspan(begin, end - begin));
    begin = end;
  }
}

void PaddingCheck::JudgeExtents(const RankState& state, absl::Span<const Extent> extents) {
  const int32_t buffer = extents[0].buffer;
  int64_t next = 0;
  for (const Extent& extent : extents) {
    if (extent.offset != next) {
      return ReportExtent(state, buffer, absl::StrCat("a segment at offset ", next),
                          absl::StrCat(extent.offset < next ? "an overlap: one at offset "
                                                            : "a hole: the next at offset ",
                                       extent.offset));
    }
    next += extent.count;
  }
  const RankEvents* events = EventsOf(*observed_, Rank{state.ranks.first});
  const BufferInfo* info = events == nullptr ? nullptr : BufferOf(*events, buffer);
  if (info == nullptr || FillsBuffer(state, *info, next)) return;
  ReportExtent(state, buffer, absl::StrCat("segments up to its ", info->elements, " elements"),
               absl::StrCat("segments up to ", next));
}

bool PaddingCheck::FillsBuffer(const RankState& state, const BufferInfo& info, int64_t end) const {
  if (end == info.elements) return true;
  if (info.role != BufferRole::kOptimizerState || info.elements % 2 != 0 ||
      end != info.elements / 2) {
    return false;
  }
  // Half a buffer of both moments is all there is to see when only one of them was shown.
  return std::none_of(state.segments.begin(), state.segments.end(),
                      [](const StateSegment& s) { return s.state == StateClass::kExpAvgSq; });
}

void PaddingCheck::ReportExtent(const RankState& state, int32_t buffer, const std::string& expected,
                                const std::string& actual) {
  findings_.Add([&] {
    Violation violation =
        Base("the segments of a buffer tile it without hole or overlap", state.ranks.first);
    const std::string place = NameBuffer(state, buffer, &violation);
    violation.expected = absl::StrCat(expected, " in ", place);
    violation.actual = actual;
    violation.likely_cause =
        "offsets by padded lengths in one place and by logical ones in another";
    return violation;
  });
}

void PaddingCheck::JudgeValues(const RankState& state) {
  for (const StateSegment& segment : state.segments) {
    if (segment.values == nullptr || segment.range.count <= 0) continue;
    if (segment.tensor < 0) {
      padding_values_shown_ = true;
      JudgePaddingValues(state, segment);
    } else {
      JudgeElements(state, segment);
    }
  }
}

bool SamePoison(float a, float b) {
  constexpr uint32_t kSign = 0x80000000;
  return (FloatBits(a) | kSign) == (FloatBits(b) | kSign);
}

// What padding of the segment may hold. Arithmetic may change the sign of a NaN that it keeps.
bool IsInert(const StateSegment& segment, float value) {
  if (segment.state == StateClass::kReducedGradient) return std::isnan(value);
  const std::optional<PoisonTag> poison = ReadPoison(value);
  if (!poison.has_value() || poison->kind != PoisonKind::kPadding) return false;
  return segment.buffer < 0 || SamePoison(value, PaddingValue(segment.buffer));
}

// Where a value that is not inert seems to come from.
std::string CauseOfPadding(float value) {
  if (!std::isnan(value)) {
    return "a write with a padded length, a shifted offset, or padding that is set to zero and "
           "takes part in sums";
  }
  const std::optional<PoisonTag> poison = ReadPoison(value);
  if (!poison.has_value()) {
    return "arithmetic ran over the padding: an update or sum with a padded length";
  }
  if (poison->kind == PoisonKind::kPadding) {
    return "padding of another buffer was copied here: a shifted offset or a padded length";
  }
  return absl::StrCat(Name(poison->kind),
                      " was copied here, or this buffer's padding was not filled when the run "
                      "began");
}

// What a trainer of somebody else's has to do.
std::string HowToFillPadding(const StateSegment& segment) {
  if (segment.state == StateClass::kReducedGradient) {
    return "a trainer must not leave numbers in padding of gradients: fill it with a NaN when the "
           "buffer is allocated, PaddingValue(buffer) of invariants/suite/sharded_trainer.h for "
           "one";
  }
  const std::string value =
      segment.buffer < 0
          ? "PaddingValue(buffer)"
          : absl::StrCat("PaddingValue(", segment.buffer, ") = 0x",
                         absl::Hex(FloatBits(PaddingValue(segment.buffer)), absl::kZeroPad8));
  return absl::StrCat("a trainer must fill padding with exactly ", value,
                      " when the run begins (invariants/suite/sharded_trainer.h) and never write "
                      "to it again");
}

void PaddingCheck::JudgePaddingValues(const RankState& state, const StateSegment& segment) {
  const float* end = segment.values + segment.range.count;
  const float* wrong =
      std::find_if(segment.values, end, [&](float value) { return !IsInert(segment, value); });
  if (wrong == end) return;
  findings_.Add([&] {
    Violation violation = Base(kPaddingStaysFilled, state.ranks.first);
    const std::string place = NameBuffer(state, segment.buffer, &violation);
    const bool any = segment.state == StateClass::kReducedGradient || segment.buffer < 0;
    violation.expected = "NaN";
    if (!any) {
      const uint32_t bits = FloatBits(PaddingValue(segment.buffer));
      absl::StrAppend(&violation.expected, " (0x", absl::Hex(bits, absl::kZeroPad8), ")");
    }
    violation.actual = absl::StrCat(FloatText(*wrong), " at offset ",
                                    segment.buffer_offset + (wrong - segment.values), " of ", place,
                                    " (", Name(segment.state), ")");
    violation.likely_cause = absl::StrCat(CauseOfPadding(*wrong), "; ", HowToFillPadding(segment));
    return violation;
  });
}

void PaddingCheck::JudgeElements(const RankState& state, const StateSegment& segment) {
  int64_t index = FirstNan(segment.values, segment.range.count);
  std::optional<PoisonTag> poison;
  while (index >= 0 && !(poison = ReadPoison(segment.values[index]))) {
    const int64_t rest = FirstNan(segment.values + index + 1, segment.range.count - index - 1);
    index = rest < 0 ? -1 : index + 1 + rest;
  }
  if (index < 0) return;
  findings_.Add([&] {
    Violation violation = Base(kNoElementIsPoison, state.ranks.first);
    const std::string place = NameBuffer(state, poison->buffer, &violation);
    violation.tensor = TensorName(run_->model, segment.tensor);
    violation.element = segment.range.first + index;
    violation.expected = absl::StrCat("a number in ", Name(segment.state));
    violation.actual = absl::StrCat("the poison of ", Name(poison->kind), " of ", place, ", ",
                                    FloatText(segment.values[index]));
    violation.likely_cause =
        poison->kind == PoisonKind::kPadding ? "padding was read as elements: a wrong offset or "
                                               "length on the way here"
        : poison->kind == PoisonKind::kFresh ? "it was read before it was written: a copy, gather "
                                               "or wait that is missing"
                                             : "it was read after its release: see "
                                               "unshard_lifecycle and ordering";
    return violation;
  });
}

}  // namespace

std::unique_ptr<Check> MakePadding() { return std::make_unique<PaddingCheck>(); }

}  // namespace shardproof
