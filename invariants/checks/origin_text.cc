#include "invariants/checks/origin_text.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "invariants/checks/check.h"
#include "invariants/checks/describe.h"

namespace shardproof {
namespace {

constexpr size_t kShown = 4;  // faults of one sum that are written out

std::string TimesText(int64_t times) {
  if (times == 1) return "once";
  if (times == 2) return "twice";
  return absl::StrCat(times, " times");
}

// "padding of bucket 0".
std::string PlaceText(const RunDescription& run, const StepObservation& observed,
                      absl::string_view what, const Origin& origin) {
  std::string set;
  if (const RankEvents* events = EventsOf(observed, Rank{origin.rank})) {
    if (const BufferInfo* buffer = BufferOf(*events, origin.buffer)) {
      set = SetName(run.model, buffer->unit, buffer->bucket);
    }
  }
  if (set.empty()) set = absl::StrCat("buffer ", origin.buffer);
  return absl::StrCat(what, " of ", set);
}

// What is neither a mixture.
std::string PlainText(const RunDescription& run, const StepObservation& observed,
                      const Origin& origin) {
  switch (origin.kind) {
    case OriginKind::kPadding:
      return PlaceText(run, observed, "padding", origin);
    case OriginKind::kNeverWritten:
      return PlaceText(run, observed, "memory that was never written,", origin);
    case OriginKind::kFreed:
      return PlaceText(run, observed, "freed memory", origin);
    case OriginKind::kParameter:
      return absl::StrCat(ElementText(run.model, origin.tensor, origin.element), ", version ",
                          origin.version);
    case OriginKind::kExpAvg:
    case OriginKind::kExpAvgSq:
      return absl::StrCat(Name(origin.kind), " of ",
                          ElementText(run.model, origin.tensor, origin.element), ", version ",
                          origin.version);
    case OriginKind::kGradient:
      return absl::StrCat("gradient of ", ElementText(run.model, origin.tensor, origin.element));
    case OriginKind::kNorm:
      return "a sum of squares";
    case OriginKind::kCoefficient:
      return "a clip coefficient";
    case OriginKind::kMixed:
      return "a mixture";
  }
  return "?";
}

const OriginMixture* MixtureOf(const StepObservation& observed, const Origin& origin) {
  if (origin.kind != OriginKind::kMixed || origin.mixture < 0) return nullptr;
  const std::vector<OriginMixture>& mixtures = observed.origins.mixtures;
  if (static_cast<size_t>(origin.mixture) >= mixtures.size()) return nullptr;
  return &mixtures[origin.mixture];
}

// One contribution, whatever happened to it since.
using Contribution = std::tuple<int32_t, int32_t, int32_t>;  // rank, micro-batch, stage
Contribution ContributionOf(const OriginTerm& term) {
  return {term.rank, term.micro_batch, term.stage};
}

// Compares one sum; collects sentences.
class SumComparison {
 public:
  SumComparison(const RunDescription& run, absl::Span<const OriginTerm> expected,
                absl::Span<const OriginTerm> actual)
      : run_(run), actual_(actual) {
    for (const OriginTerm& term : expected) {
      wanted_[ContributionOf(term)] = term;
      several_stages_ = several_stages_ || term.stage != expected[0].stage;
    }
    for (const OriginTerm& term : actual) {
      if (!IsWanted(term)) continue;
      counts_[ContributionOf(term)] += term.count;
    }
  }

  SumFaults Compare() {
    FindMissing();
    FindDoubled();
    FindStrangers();
    FindScales();
    FindClips();
    if (sentences_.empty()) return {};
    SumFaults faults;
    const size_t shown = std::min(sentences_.size(), kShown);
    faults.text = absl::StrJoin(sentences_.begin(), sentences_.begin() + shown, "; ");
    if (shown < sentences_.size()) {
      absl::StrAppend(&faults.text, "; and ", sentences_.size() - shown, " more");
    }
    faults.ratio = Ratio();
    faults.cause = cause_;
    return faults;
  }

 private:
  bool IsWanted(const OriginTerm& term) const {
    const auto found = wanted_.find(ContributionOf(term));
    return found != wanted_.end() && found->second.step == term.step;
  }

  std::string Who(const Contribution& contribution) const {
    const auto [rank, micro_batch, stage] = contribution;
    std::string text = absl::StrCat("rank ", rank, "'s micro-batch ", micro_batch);
    if (several_stages_ && stage >= 0 && static_cast<size_t>(stage) < run_.model.stages.size()) {
      absl::StrAppend(&text, " in ", run_.model.stages[stage].name);
    }
    return text;
  }

  void Say(std::string sentence, absl::string_view cause) {
    sentences_.push_back(std::move(sentence));
    if (cause_.empty()) cause_ = std::string(cause);
  }

  // Says `fault` of each contribution, or once of a rank all of whose contributions have it.
  void SayOf(const std::map<Contribution, std::string>& faults, absl::string_view cause) {
    std::map<int32_t, size_t> all;
    for (const auto& [contribution, term] : wanted_) ++all[std::get<0>(contribution)];
    for (auto at = faults.begin(); at != faults.end();) {
      const int32_t rank = std::get<0>(at->first);
      auto end = at;
      size_t same = 0;
      for (; end != faults.end() && std::get<0>(end->first) == rank; ++end) {
        same += end->second == at->second;
      }
      if (same > 1 && same == all[rank]) {
        Say(absl::StrCat("rank ", rank, " is ", at->second), cause);
        at = end;
        continue;
      }
      for (; at != end; ++at) Say(absl::StrCat(Who(at->first), " is ", at->second), cause);
    }
  }

  void FindMissing() {
    std::map<Contribution, std::string> missing;
    std::map<int32_t, bool> ranks;  // whether something of the rank is there
    for (const auto& [contribution, term] : wanted_) {
      const bool there = counts_.count(contribution) > 0;
      bool& some = ranks.try_emplace(std::get<0>(contribution), false).first->second;
      some = some || there;
      if (!there) missing[contribution] = "missing";
    }
    const bool whole_ranks =
        std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return !rank.second; });
    SayOf(missing,
          whole_ranks
              ? "a reduction over the ranks that did not run, ran in a smaller group, or before "
                "backward had written all"
              : "a gradient that was overwritten, or freed, before the next micro-batch or stage "
                "was added to it");
  }

  void FindDoubled() {
    std::map<Contribution, std::string> doubled;
    for (const auto& [contribution, count] : counts_) {
      if (count > 1) doubled[contribution] = absl::StrCat("counted ", TimesText(count));
    }
    SayOf(doubled,
          "a reduction of what was reduced already, an accumulation that ran twice, or a gradient "
          "that was not cleared between two reductions");
  }

  void FindStrangers() {
    for (const OriginTerm& term : actual_) {
      if (IsWanted(term)) continue;
      const int64_t step = wanted_.empty() ? term.step : wanted_.begin()->second.step;
      if (term.step != step) {
        Say(absl::StrCat(Who(ContributionOf(term)), " of step ", term.step, " is counted"),
            "a gradient of an earlier step that nobody released or overwrote");
      } else {
        Say(absl::StrCat(Who(ContributionOf(term)), " is counted, and does not use the tensor"),
            "a usage map that is not that of this rank, micro-batch and step");
      }
    }
  }

  // `of(term)` is what is wrong with a term, empty if nothing is.
  template <typename Of>
  void SayOfTerms(Of of, absl::string_view cause) {
    std::map<Contribution, std::string> faults;
    std::string common;
    bool all_alike = true;
    for (const OriginTerm& term : actual_) {
      if (!IsWanted(term)) continue;
      const std::string fault = of(term);
      if (common.empty()) common = fault;
      all_alike = all_alike && !fault.empty() && fault == common;
      if (!fault.empty()) faults[ContributionOf(term)] = fault;
    }
    if (faults.empty()) return;
    if (all_alike) {
      Say(absl::StrCat("every contribution is ", common), cause);
    } else {
      SayOf(faults, cause);
    }
  }

  void FindScales() {
    SayOfTerms(
        [&](const OriginTerm& term) {
          if (term.scale == wanted_[ContributionOf(term)].scale) return std::string();
          std::string text = absl::StrCat("scaled ", TimesText(term.scalings));
          if (term.scalings > 0) absl::StrAppendFormat(&text, " (by %.9g in all)", term.scale);
          return text;
        },
        "the division by N*K left out, done twice, or with another N or K");
  }

  void FindClips() {
    SayOfTerms(
        [&](const OriginTerm& term) {
          if (term.clips == wanted_[ContributionOf(term)].clips) return std::string();
          return absl::StrCat("clipped ", TimesText(term.clips));
        },
        "the multiplication by the clip coefficient left out, or done twice");
  }

  double Ratio() const {
    double expected = 0;
    double actual = 0;
    for (const auto& [contribution, term] : wanted_) expected += term.scale;
    for (const OriginTerm& term : actual_) actual += term.count * term.scale;
    return expected == 0 || actual == expected ? 0 : actual / expected;
  }

  const RunDescription& run_;
  const absl::Span<const OriginTerm> actual_;
  std::map<Contribution, OriginTerm> wanted_;
  std::map<Contribution, int64_t> counts_;
  bool several_stages_ = false;
  std::vector<std::string> sentences_;
  std::string cause_;
};

}  // namespace

std::string ElementText(const ModelDescription& model, int32_t tensor, int64_t element) {
  return absl::StrCat("element ", element, " of ", TensorName(model, tensor));
}

std::string OriginText(const RunDescription& run, const StepObservation& observed,
                       const Origin& origin) {
  const OriginMixture* mixture = MixtureOf(observed, origin);
  if (mixture == nullptr) return PlainText(run, observed, origin);
  const std::string left = PlainText(run, observed, mixture->left);
  const std::string right = PlainText(run, observed, mixture->right);
  switch (mixture->by) {
    case MixedBy::kSum:
      return absl::StrCat(left, " + ", right);
    case MixedBy::kScale:
      return absl::StrCat(left, " times a number");
    case MixedBy::kScaleBy:
      return absl::StrCat(left, " times ", right);
    case MixedBy::kCoefficient:
      return absl::StrCat("a clip coefficient of ", left);
  }
  return "?";
}

bool AddsPadding(const StepObservation& observed, const Origin& origin) {
  const OriginMixture* mixture = MixtureOf(observed, origin);
  return mixture != nullptr && mixture->by == MixedBy::kSum &&
         (mixture->left.kind == OriginKind::kPadding ||
          mixture->right.kind == OriginKind::kPadding);
}

absl::Span<const OriginTerm> TermsOf(const StepObservation& observed, int32_t terms) {
  if (terms < 0 || static_cast<size_t>(terms) >= observed.origins.term_sets.size()) return {};
  return observed.origins.term_sets[terms];
}

SumFaults CompareSums(const RunDescription& run, absl::Span<const OriginTerm> expected,
                      absl::Span<const OriginTerm> actual) {
  return SumComparison(run, expected, actual).Compare();
}

}  // namespace shardproof
