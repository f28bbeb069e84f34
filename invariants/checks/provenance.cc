#include "invariants/checks/provenance.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "invariants/checks/describe.h"
#include "invariants/checks/origin_text.h"
#include "invariants/closed_forms/closed_forms.h"

namespace shardproof {
namespace {

constexpr absl::string_view kReadRule =
    "computation reads each element of a parameter from its own place, after every update so far";
constexpr absl::string_view kForwardRule =
    "every micro-batch reads each parameter once for each stage that uses it";
constexpr absl::string_view kHeldRule =
    "after the step each element is kept where it belongs, with this step's update";
constexpr absl::string_view kUpdateRule =
    "each element that the step uses is updated once, with its own moments, step count and "
    "hyper-parameters";
constexpr absl::string_view kGradientRule =
    "a gradient is the mean over all ranks and micro-batches: each contribution once, scaled by "
    "1/(N*K) in all, clipped once if the run clips";
constexpr absl::string_view kNormRule =
    "the clip coefficient is that of a norm which covers each trainable element once, before "
    "clipping";
constexpr absl::string_view kPaddingRule = "padding stays padding";

bool IsHeld(OriginUse use) {
  return use == OriginUse::kHeldParameter || use == OriginUse::kHeldGradient ||
         use == OriginUse::kHeldExpAvg || use == OriginUse::kHeldExpAvgSq;
}

// What kind of value a use asks for.
OriginKind WantedKind(OriginUse use) {
  switch (use) {
    case OriginUse::kForwardParameter:
    case OriginUse::kBackwardParameter:
    case OriginUse::kUpdateParameter:
    case OriginUse::kHeldParameter:
      return OriginKind::kParameter;
    case OriginUse::kNormGradient:
    case OriginUse::kUpdateGradient:
    case OriginUse::kHeldGradient:
      return OriginKind::kGradient;
    case OriginUse::kClipCoefficient:
      return OriginKind::kCoefficient;
    case OriginUse::kUpdateExpAvg:
    case OriginUse::kHeldExpAvg:
      return OriginKind::kExpAvg;
    case OriginUse::kUpdateExpAvgSq:
    case OriginUse::kHeldExpAvgSq:
      return OriginKind::kExpAvgSq;
  }
  return OriginKind::kParameter;
}

// The rule that a use breaks when it meets another value.
absl::string_view RuleOf(OriginUse use) {
  switch (use) {
    case OriginUse::kForwardParameter:
    case OriginUse::kBackwardParameter:
      return kReadRule;
    case OriginUse::kHeldParameter:
    case OriginUse::kHeldExpAvg:
    case OriginUse::kHeldExpAvgSq:
      return kHeldRule;
    case OriginUse::kUpdateParameter:
    case OriginUse::kUpdateExpAvg:
    case OriginUse::kUpdateExpAvgSq:
      return kUpdateRule;
    case OriginUse::kNormGradient:
    case OriginUse::kUpdateGradient:
    case OriginUse::kHeldGradient:
      return kGradientRule;
    case OriginUse::kClipCoefficient:
      return kNormRule;
  }
  return kReadRule;
}

// What one norm of one rank covered.
struct NormCover {
  int32_t event = -1;
  std::vector<std::pair<int32_t, ElementRange>> ranges;  // tensor, elements
};

class Provenance final : public Check {
 public:
  absl::string_view name() const override { return "provenance"; }
  void Begin(const RunDescription& run) override;
  void Step(const StepObservation& observed, const ReferenceStep* reference) override;
  CheckResult Finish() override { return findings_.Finish(); }

 private:
  bool HasEvidence(const StepObservation& observed);
  void LookForHoles(const StepObservation& observed);
  void JudgeForwards();
  void BeginStep(const StepObservation& observed);
  std::vector<OriginTerm> WantedTerms(int32_t tensor) const;
  bool IsTensor(int32_t tensor) const {
    return tensor >= 0 && static_cast<size_t>(tensor) < elements_.size();
  }
  // In this step.
  bool IsUpdated(int32_t tensor) const { return updated_[tensor] != 0; }
  int64_t WantedVersion(OriginUse use, int32_t tensor) const {
    return updates_[tensor] + (IsHeld(use) && IsUpdated(tensor) ? 1 : 0);
  }

  void Judge(const OriginRecord& record);
  void JudgeUpdate(const OriginRecord& record);
  void JudgePadding(const OriginRecord& record);
  void JudgeNormRead(const OriginRecord& record);
  void JudgeNorms();
  void JudgeNorm(const OriginRecord& record, int32_t terms);
  bool IsWanted(const OriginRecord& record, int64_t at, const OriginRun& run);
  bool IsWantedSum(int32_t tensor, int32_t terms, bool clipped);

  void AddWrongValue(const OriginRecord& record, int64_t at, const Origin& origin);
  void AddMisplaced(const OriginRecord& record, int64_t element, const Origin& origin);
  void AddWrongSum(const OriginRecord& record, int64_t element, const Origin& origin);
  void AddWrongVersion(const OriginRecord& record, int64_t element, const Origin& origin);
  void AddUpdate(const OriginRecord& record, absl::string_view expected, absl::string_view actual,
                 absl::string_view cause);
  void AddNorm(const OriginRecord& record, absl::string_view actual, int32_t tensor,
               int64_t element);
  Violation Base(absl::string_view rule, const OriginRecord& record, int32_t tensor,
                 int64_t element) const;
  absl::Span<const OriginRun> RunsOf(const OriginRecord& record) const;

  const RunDescription* run_ = nullptr;
  std::vector<int64_t> elements_;             // by tensor
  std::vector<std::vector<int32_t>> stages_;  // by tensor: those that use it
  std::vector<int64_t> updates_;              // by tensor, of the steps before
  std::vector<char> updated_;                 // by tensor, in this step
  std::vector<int64_t> held_;                 // by rank: elements of state at the boundary
  double scale_ = 1;                          // of each contribution
  bool clips_ = false;
  int64_t counted_steps_ = 0;
  const StepObservation* observed_ = nullptr;
  std::vector<std::vector<OriginTerm>> wanted_;  // by tensor, unclipped
  std::vector<int32_t> good_terms_[2];           // by tensor, plain and clipped: known as wanted
  std::map<int32_t, NormCover> norms_;           // by rank: its latest in this step
  std::vector<OriginRecord> coefficients_;       // how this step's were used
  Findings findings_{"provenance"};
};

void Provenance::Begin(const RunDescription& run) {
  run_ = &run;
  elements_ = TensorElements(run.model);
  stages_.resize(elements_.size());
  for (size_t stage = 0; stage < run.model.stages.size(); ++stage) {
    for (int32_t tensor : run.model.stages[stage].tensors) {
      stages_[tensor].push_back(static_cast<int32_t>(stage));
    }
  }
  updates_.assign(elements_.size(), 0);
  const double contributions = static_cast<double>(run.sharding.world_size.value) *
                               static_cast<double>(run.data.num_micro_batches);
  scale_ = static_cast<double>(static_cast<float>(1.0 / contributions));
  clips_ = run.clip_grad_norm > 0;
  if (!NoStateRule(run).empty() || !NoStepRule(run).empty()) return;
  const ClosedForms forms(run);
  for (int32_t rank = 0; rank < run.sharding.world_size.value; ++rank) {
    const StateBytes bytes = forms.State(Rank{rank});
    held_.push_back((bytes.parameter + bytes.gradient + bytes.optimizer) /
                    DtypeBytes(Dtype::kFloat32));
  }
}

bool Provenance::HasEvidence(const StepObservation& observed) {
  for (const absl::string_view reason : {NoStepRule(*run_), NoStateRule(*run_)}) {
    if (reason.empty()) continue;
    findings_.NotObserved(reason);
    return false;
  }
  if (observed.origins.records.empty()) {
    findings_.NotObserved("no origins were shown: the provenance engine shows them");
    return false;
  }
  observed_ = &observed;
  LookForHoles(observed);
  return true;
}

// A rank, or a part of one, whose origins were left out is not one whose origins are right.
void Provenance::LookForHoles(const StepObservation& observed) {
  std::vector<int64_t> shown(held_.size(), 0);
  for (const OriginRecord& record : observed.origins.records) {
    int64_t elements = 0;
    for (const OriginRun& run : RunsOf(record)) elements += run.count;
    if (elements != record.range.count) {
      findings_.NotObserved(absl::StrCat("rank ", record.rank, " showed origins of ", elements,
                                         " of ", record.range.count, " elements of a ",
                                         Name(record.use)));
    }
    if (!IsHeld(record.use) || !IsTensor(record.tensor) || record.rank < 0) continue;
    if (static_cast<size_t>(record.rank) < shown.size()) shown[record.rank] += elements;
  }
  for (size_t rank = 0; rank < shown.size(); ++rank) {
    if (shown[rank] >= held_[rank]) continue;
    findings_.NotObserved(absl::StrCat("rank ", rank, " showed the origins of ", shown[rank],
                                       " of the ", held_[rank], " elements of its state"));
  }
}

void Provenance::BeginStep(const StepObservation& observed) {
  observed_ = &observed;
  const auto is_updated = [&](size_t tensor, int64_t step) {
    return run_->model.tensors[tensor].trainable &&
           IsUsedInStep(*run_, static_cast<int32_t>(tensor), step);
  };
  for (; counted_steps_ < observed.step; ++counted_steps_) {
    for (size_t tensor = 0; tensor < elements_.size(); ++tensor) {
      updates_[tensor] += is_updated(tensor, counted_steps_) ? 1 : 0;
    }
  }
  updated_.assign(elements_.size(), 0);
  wanted_.assign(elements_.size(), {});
  for (size_t tensor = 0; tensor < elements_.size(); ++tensor) {
    updated_[tensor] = is_updated(tensor, observed.step) ? 1 : 0;
    wanted_[tensor] = WantedTerms(static_cast<int32_t>(tensor));
  }
  for (std::vector<int32_t>& good : good_terms_) good.assign(elements_.size(), -1);
  norms_.clear();
  coefficients_.clear();
}

std::vector<OriginTerm> Provenance::WantedTerms(int32_t tensor) const {
  std::vector<OriginTerm> terms;
  if (!run_->model.tensors[tensor].trainable) return terms;
  for (int32_t rank = 0; rank < run_->sharding.world_size.value; ++rank) {
    for (int32_t k = 0; k < run_->data.num_micro_batches; ++k) {
      if (!IsUsed(*run_, tensor, observed_->step, Rank{rank}, k)) continue;
      for (int32_t stage : stages_[tensor]) {
        OriginTerm term;
        term.step = observed_->step;
        term.rank = rank;
        term.micro_batch = k;
        term.stage = stage;
        term.scalings = 1;
        term.scale = scale_;
        terms.push_back(term);
      }
    }
  }
  return terms;
}

absl::Span<const OriginRun> Provenance::RunsOf(const OriginRecord& record) const {
  const std::vector<OriginRun>& runs = observed_->origins.runs;
  if (record.first_run >= runs.size()) return {};
  return absl::MakeConstSpan(runs).subspan(record.first_run, record.run_count);
}

void Provenance::Step(const StepObservation& observed, const ReferenceStep*) {
  if (!HasEvidence(observed)) return;
  BeginStep(observed);
  findings_.Observed();
  for (const OriginRecord& record : observed.origins.records) {
    switch (record.use) {
      case OriginUse::kNormGradient:
        JudgeNormRead(record);
        break;
      case OriginUse::kClipCoefficient:
        coefficients_.push_back(record);
        break;
      case OriginUse::kUpdateParameter:
        JudgeUpdate(record);
        break;
      default:
        Judge(record);
    }
  }
  JudgeNorms();
  JudgeForwards();
}

void Provenance::JudgeForwards() {
  const size_t tensors = elements_.size();
  std::vector<int64_t> reads(run_->sharding.world_size.value * tensors, 0);
  for (const OriginRecord& record : observed_->origins.records) {
    if (record.use != OriginUse::kForwardParameter || !IsTensor(record.tensor)) continue;
    const size_t at = static_cast<size_t>(record.rank) * tensors + record.tensor;
    if (record.rank >= 0 && at < reads.size()) ++reads[at];
  }
  for (size_t at = 0; at < reads.size(); ++at) {
    const size_t tensor = at % tensors;
    const int64_t wanted =
        run_->data.num_micro_batches * static_cast<int64_t>(stages_[tensor].size());
    if (reads[at] == wanted || elements_[tensor] == 0) continue;
    findings_.Add([&] {
      OriginRecord record;
      record.rank = static_cast<int32_t>(at / tensors);
      Violation violation =
          Base(kForwardRule, record, static_cast<int32_t>(tensor), /*element=*/-1);
      violation.expected = absl::StrCat(wanted, " reads in forward");
      violation.actual = absl::StrCat(reads[at]);
      return violation;
    });
  }
}

void Provenance::Judge(const OriginRecord& record) {
  if (!IsTensor(record.tensor)) {
    if (IsHeld(record.use)) JudgePadding(record);
    return;
  }
  int64_t at = 0;
  for (const OriginRun& run : RunsOf(record)) {
    if (!IsWanted(record, at, run)) AddWrongValue(record, at, run.origin);
    at += run.count;
  }
}

bool Provenance::IsWanted(const OriginRecord& record, int64_t at, const OriginRun& run) {
  const Origin& origin = run.origin;
  if (origin.kind != WantedKind(record.use) || origin.tensor != record.tensor ||
      origin.element != record.range.first + at) {
    return false;
  }
  if (origin.kind == OriginKind::kGradient) {
    return IsWantedSum(record.tensor, origin.terms,
                       clips_ && record.use != OriginUse::kNormGradient);
  }
  return origin.version == WantedVersion(record.use, record.tensor);
}

bool Provenance::IsWantedSum(int32_t tensor, int32_t terms, bool clipped) {
  int32_t& good = good_terms_[clipped ? 1 : 0][tensor];
  if (good == terms && terms >= 0) return true;
  const size_t sets = observed_->origins.term_sets.size();
  if (terms < 0 || static_cast<size_t>(terms) >= sets) return false;
  std::vector<OriginTerm> wanted = wanted_[tensor];
  for (OriginTerm& term : wanted) term.clips = clipped ? 1 : 0;
  const absl::Span<const OriginTerm> actual = TermsOf(*observed_, terms);
  const bool equal = std::equal(wanted.begin(), wanted.end(), actual.begin(), actual.end()) ||
                     CompareSums(*run_, wanted, actual).text.empty();
  if (equal) good = terms;
  return equal;
}

void Provenance::AddWrongValue(const OriginRecord& record, int64_t at, const Origin& origin) {
  const int64_t element = record.range.first + at;
  if (origin.kind != WantedKind(record.use) || origin.tensor != record.tensor ||
      origin.element != element) {
    AddMisplaced(record, element, origin);
  } else if (origin.kind == OriginKind::kGradient) {
    AddWrongSum(record, element, origin);
  } else {
    AddWrongVersion(record, element, origin);
  }
}

void Provenance::AddMisplaced(const OriginRecord& record, int64_t element, const Origin& origin) {
  findings_.Add([&] {
    Violation violation = Base(RuleOf(record.use), record, record.tensor, element);
    Origin wanted;
    wanted.kind = WantedKind(record.use);
    wanted.tensor = record.tensor;
    wanted.element = element;
    wanted.version = static_cast<int32_t>(WantedVersion(record.use, record.tensor));
    violation.expected = OriginText(*run_, *observed_, wanted);
    violation.actual = OriginText(*run_, *observed_, origin);
    const bool elsewhere = origin.tensor != record.tensor || origin.element != element;
    if (HasElement(origin.kind) && elsewhere) {
      absl::StrAppend(&violation.actual, ": ",
                      ElementText(run_->model, origin.tensor, origin.element), " lies where ",
                      ElementText(run_->model, record.tensor, element), " belongs");
      violation.likely_cause = "an offset or a shard that is not this buffer's or this rank's";
    } else if (AddsPadding(*observed_, origin)) {
      absl::StrAppend(&violation.actual, ": padding was added");
      violation.likely_cause = "offsets that count padding on one side and not on the other";
    } else if (IsInert(origin.kind)) {
      violation.likely_cause =
          "a collective or computation that did not write all of the buffer, or memory that was "
          "freed too early";
    }
    return violation;
  });
}

void Provenance::AddWrongVersion(const OriginRecord& record, int64_t element,
                                 const Origin& origin) {
  findings_.Add([&] {
    Violation violation = Base(RuleOf(record.use), record, record.tensor, element);
    const int64_t wanted = WantedVersion(record.use, record.tensor);
    violation.expected = absl::StrCat("version ", wanted);
    violation.actual = absl::StrCat("version ", origin.version);
    violation.likely_cause =
        origin.version > wanted
            ? "an update that ran twice, or in a step that does not use the tensor"
            : "an update that left these elements out, or a gather, broadcast or copy after it "
              "that did not run, or ran before it";
    return violation;
  });
}

void Provenance::AddWrongSum(const OriginRecord& record, int64_t element, const Origin& origin) {
  findings_.Add([&] {
    Violation violation = Base(kGradientRule, record, record.tensor, element);
    std::vector<OriginTerm> wanted = wanted_[record.tensor];
    const bool clipped = clips_ && record.use != OriginUse::kNormGradient;
    for (OriginTerm& term : wanted) term.clips = clipped ? 1 : 0;
    violation.expected = absl::StrFormat(
        "%d contributions of step %d, each once, scaled by %.9g%s", wanted.size(), observed_->step,
        scale_, clipped ? ", clipped once" : (clips_ ? ", not clipped" : ""));
    const SumFaults faults = CompareSums(*run_, wanted, TermsOf(*observed_, origin.terms));
    violation.actual = faults.text.empty() ? "a sum that was not shown" : faults.text;
    violation.ratio = faults.ratio;
    violation.likely_cause = faults.cause;
    const std::string name = NameRatio(faults.ratio, *run_);
    if (!name.empty()) absl::StrAppend(&violation.likely_cause, " (the ratio is ", name, ")");
    return violation;
  });
}

void Provenance::JudgeUpdate(const OriginRecord& record) {
  const int32_t tensor = record.tensor;
  if (!IsTensor(tensor)) {
    const absl::Span<const OriginRun> runs = RunsOf(record);
    AddUpdate(record, absl::StrCat("a parameter of ", TensorName(run_->model, record.named_tensor)),
              runs.empty() ? "nothing" : OriginText(*run_, *observed_, runs[0].origin),
              "an update whose range is not the parameter's");
    return;
  }
  if (record.named_tensor != tensor) {
    AddUpdate(
        record, absl::StrCat("an update of ", TensorName(run_->model, tensor)),
        absl::StrCat("the update of ", TensorName(run_->model, record.named_tensor), " lies where ",
                     ElementText(run_->model, tensor, record.range.first), " belongs"),
        "an update whose range or tensor is another's");
    return;
  }
  if (!IsUpdated(tensor)) {
    AddUpdate(record, "no update", "an update of a tensor that no rank uses in this step",
              "an optimizer that does not skip what has no gradient in this step");
  }
  if (run_->optimizer.kind == OptimizerKind::kAdamW && record.step_count != updates_[tensor] + 1) {
    AddUpdate(record, absl::StrCat("step count ", updates_[tensor] + 1),
              absl::StrCat("step count ", record.step_count),
              "a step counter that is shared, or moves more or less than once an update");
  }
  const OptimizerDescription wanted = HyperParametersOf(run_->optimizer, tensor);
  const OptimizerDescription used = HyperParametersOf(run_->optimizer, record.hyper_parameters_of);
  if (used.learning_rate != wanted.learning_rate || used.beta1 != wanted.beta1 ||
      used.beta2 != wanted.beta2 || used.weight_decay != wanted.weight_decay) {
    AddUpdate(record, absl::StrCat("the hyper-parameters of ", TensorName(run_->model, tensor)),
              absl::StrCat("those of ", TensorName(run_->model, record.hyper_parameters_of)),
              "optimizer groups that were matched with other tensors than their own");
  }
  Judge(record);
}

void Provenance::AddUpdate(const OriginRecord& record, absl::string_view expected,
                           absl::string_view actual, absl::string_view cause) {
  findings_.Add([&] {
    Violation violation =
        Base(kUpdateRule, record, IsTensor(record.tensor) ? record.tensor : record.named_tensor,
             IsTensor(record.tensor) ? record.range.first : -1);
    violation.expected = std::string(expected);
    violation.actual = std::string(actual);
    violation.likely_cause = std::string(cause);
    return violation;
  });
}

void Provenance::JudgePadding(const OriginRecord& record) {
  int64_t at = record.range.first;
  for (const OriginRun& run : RunsOf(record)) {
    if (run.origin.kind != OriginKind::kPadding) {
      findings_.Add([&] {
        Violation violation = Base(kPaddingRule, record, /*tensor=*/-1, /*element=*/-1);
        violation.expected = absl::StrCat("padding at ", at, " of the buffer");
        violation.actual = OriginText(*run_, *observed_, run.origin);
        if (AddsPadding(*observed_, run.origin)) {
          absl::StrAppend(&violation.actual, ": padding was added");
        }
        violation.likely_cause =
            "a write or reduction whose offset or length does not match the layout";
        return violation;
      });
      return;
    }
    at += run.count;
  }
}

// Each run by itself: what the norm takes it to be does not matter, only that each is there once.
void Provenance::JudgeNormRead(const OriginRecord& record) {
  NormCover& cover = norms_[record.rank];
  if (cover.event != record.event) cover = {record.event, {}};
  for (const OriginRun& run : RunsOf(record)) {
    if (run.origin.kind != OriginKind::kGradient || !IsTensor(run.origin.tensor)) {
      AddNorm(record, OriginText(*run_, *observed_, run.origin), record.tensor, /*element=*/-1);
      continue;
    }
    OriginRecord part = record;
    part.tensor = run.origin.tensor;
    part.range = {run.origin.element, run.count};
    cover.ranges.push_back({part.tensor, part.range});
    if (!IsWantedSum(part.tensor, run.origin.terms, /*clipped=*/false)) {
      AddWrongValue(part, 0, run.origin);
    }
  }
}

void Provenance::JudgeNorms() {
  std::map<int32_t, OriginRecord> by_terms;  // every sum is judged once
  for (const OriginRecord& record : coefficients_) {
    const absl::Span<const OriginRun> runs = RunsOf(record);
    if (runs.empty()) continue;
    const Origin& origin = runs[0].origin;
    if (origin.kind != OriginKind::kCoefficient) {
      AddNorm(record, OriginText(*run_, *observed_, origin), /*tensor=*/-1, /*element=*/-1);
    } else if (by_terms.try_emplace(origin.terms, record).second) {
      JudgeNorm(record, origin.terms);
    }
  }
}

// That the ranks whose sums are in this norm cover each element once.
void Provenance::JudgeNorm(const OriginRecord& record, int32_t terms) {
  std::vector<std::vector<ElementRange>> covers(elements_.size());
  for (const OriginTerm& term : TermsOf(*observed_, terms)) {
    if (term.step != observed_->step) {
      AddNorm(record, absl::StrCat("rank ", term.rank, "'s sum of squares of step ", term.step),
              /*tensor=*/-1, /*element=*/-1);
      return;
    }
    const auto norm = norms_.find(term.rank);
    if (norm == norms_.end()) continue;
    for (int32_t time = 0; time < term.count; ++time) {
      for (const auto& [tensor, range] : norm->second.ranges) covers[tensor].push_back(range);
    }
  }
  for (size_t tensor = 0; tensor < elements_.size(); ++tensor) {
    const int32_t id = static_cast<int32_t>(tensor);
    std::vector<ElementRange>& ranges = covers[tensor];
    std::sort(ranges.begin(), ranges.end());
    int64_t covered = 0;
    for (const ElementRange& range : ranges) {
      if (range.first < covered) {
        AddNorm(record, absl::StrCat(ElementText(run_->model, id, range.first), " twice"), id,
                range.first);
        return;
      }
      if (range.first > covered) break;
      covered = range.end();
    }
    // A tensor without a gradient in this step adds nothing, there or not.
    if (covered == elements_[tensor] || !IsUpdated(id)) continue;
    AddNorm(record, absl::StrCat("a norm without ", ElementText(run_->model, id, covered)), id,
            covered);
    return;
  }
}

void Provenance::AddNorm(const OriginRecord& record, absl::string_view actual, int32_t tensor,
                         int64_t element) {
  findings_.Add([&] {
    Violation violation = Base(kNormRule, record, tensor, element);
    violation.expected = "each trainable element once";
    violation.actual = std::string(actual);
    violation.likely_cause =
        "squares that were not summed over the ranks, were summed though every rank had all, or "
        "whose ranges leave out or repeat a part";
    return violation;
  });
}

Violation Provenance::Base(absl::string_view rule, const OriginRecord& record, int32_t tensor,
                           int64_t element) const {
  Violation violation;
  violation.rule = std::string(rule);
  violation.rank = record.rank;
  violation.step = observed_->step;
  violation.event = record.event;
  violation.tensor = TensorName(run_->model, tensor);
  violation.element = element;
  const RankEvents* events = EventsOf(*observed_, Rank{record.rank});
  const BufferInfo* buffer = events == nullptr ? nullptr : BufferOf(*events, record.buffer);
  if (buffer != nullptr) violation.unit = SetName(run_->model, buffer->unit, buffer->bucket);
  return violation;
}

}  // namespace

std::unique_ptr<Check> MakeProvenance() { return std::make_unique<Provenance>(); }

}  // namespace shardproof
