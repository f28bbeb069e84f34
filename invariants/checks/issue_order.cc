#include "invariants/checks/issue_order.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/checks/issued_items.h"
#include "invariants/closed_forms/closed_forms.h"

namespace shardproof {
namespace {

// An item that a rank issued, and the event that it is.
struct Issued {
  ItemKey key;
  int32_t event = -1;
};

// How far ahead to look for the place where sequence and order meet again.
constexpr int64_t kWindow = 64;

class IssueOrder : public Check {
 public:
  absl::string_view name() const override { return "issue_order"; }
  void Begin(const RunDescription& run) override;
  void Step(const StepObservation& observed, const ReferenceStep* reference) override;
  CheckResult Finish() override;

 private:
  // Skips that bring the two orders together again.
  struct Resume {
    size_t expected = 0;
    size_t issued = 0;
  };

  bool Matches(const RankEvents& events) const;
  void ReportDivergences(int64_t step, const RankEvents& events);
  Resume FindResume(const std::vector<Issued>& issued, size_t e, size_t i) const;
  void AddDivergence(int64_t step, Rank rank, const std::vector<Issued>& issued, size_t e, size_t i,
                     const Resume& resume);
  std::string Cause(const std::vector<Issued>& issued, size_t e, size_t i,
                    const Resume& resume) const;
  // "backward_post" when the whole order is that of full_shard with another prefetch.
  absl::string_view OtherPrefetch(const std::vector<Issued>& issued) const;
  // "X after A and before B"; "the end of the step" where there is no item.
  template <typename KeyAt>
  std::string Between(size_t size, size_t at, KeyAt key_at) const;

  Findings findings_{"issue_order"};
  const RunDescription* run_ = nullptr;
  Mode mode_ = Mode::kReplicated;
  absl::string_view undefined_;
  std::vector<ItemKey> expected_;
  RankCoverage coverage_;
};

void IssueOrder::Begin(const RunDescription& run) {
  run_ = &run;
  mode_ = run.sharding.mode;
  undefined_ = NoStepRule(run);
  expected_ = KeysOf(mode_, ExpectedSequence(run));
  coverage_.Begin(run.sharding.world_size.value);
}

void IssueOrder::Step(const StepObservation& observed, const ReferenceStep*) {
  if (!undefined_.empty()) return;
  if (observed.events.empty()) {
    findings_.NotObserved(absl::StrCat("step ", observed.step, " showed no events"));
    return;
  }
  findings_.Observed();
  coverage_.Clear();
  for (const RankEvents& events : observed.events) {
    coverage_.Add(events.ranks);  // a rank shown twice is collective_ledger's
    if (!Matches(events)) ReportDivergences(observed.step, events);
  }
  if (const int32_t missing = coverage_.Missing(); missing >= 0) {
    findings_.NotObserved(
        absl::StrCat("step ", observed.step, " showed no events of rank ", missing));
  }
}

bool IssueOrder::Matches(const RankEvents& events) const {
  size_t next = 0;
  for (const Event& event : events.events) {
    if (!IsItem(event)) continue;
    if (next == expected_.size() || KeyOf(mode_, event) != expected_[next++]) return false;
  }
  return next == expected_.size();
}

void IssueOrder::ReportDivergences(int64_t step, const RankEvents& events) {
  std::vector<Issued> issued;
  for (size_t i = 0; i < events.events.size(); ++i) {
    if (!IsItem(events.events[i])) continue;
    issued.push_back({KeyOf(mode_, events.events[i]), static_cast<int32_t>(i)});
  }
  int reported = 0;
  size_t e = 0, i = 0;
  while (e < expected_.size() || i < issued.size()) {
    if (e < expected_.size() && i < issued.size() && issued[i].key == expected_[e]) {
      ++e, ++i;
      continue;
    }
    const Resume resume = FindResume(issued, e, i);
    AddDivergence(step, Rank{events.ranks.first}, issued, e, i, resume);
    if (++reported == kMaxDivergences) return;
    e += resume.expected;
    i += resume.issued;
  }
}

IssueOrder::Resume IssueOrder::FindResume(const std::vector<Issued>& issued, size_t e,
                                          size_t i) const {
  const int64_t expected_left = static_cast<int64_t>(expected_.size() - e);
  const int64_t issued_left = static_cast<int64_t>(issued.size() - i);
  // Fewest skips first; of equals, the one that blames the sequence less.
  for (int64_t skips = 1; skips <= kWindow; ++skips) {
    for (int64_t skip_expected = 0; skip_expected <= skips; ++skip_expected) {
      const int64_t skip_issued = skips - skip_expected;
      if (skip_expected >= expected_left || skip_issued >= issued_left) continue;
      if (expected_[e + skip_expected] == issued[i + skip_issued].key) {
        return {static_cast<size_t>(skip_expected), static_cast<size_t>(skip_issued)};
      }
    }
  }
  return {static_cast<size_t>(expected_left), static_cast<size_t>(issued_left)};
}

template <typename KeyAt>
std::string IssueOrder::Between(size_t size, size_t at, KeyAt key_at) const {
  std::string text = at < size ? ItemText(*run_, key_at(at)) : "the end of the step";
  if (at > 0) absl::StrAppend(&text, " after ", ItemText(*run_, key_at(at - 1)));
  if (at + 1 < size) {
    absl::StrAppend(&text, at > 0 ? " and" : "", " before ", ItemText(*run_, key_at(at + 1)));
  }
  return text;
}

void IssueOrder::AddDivergence(int64_t step, Rank rank, const std::vector<Issued>& issued, size_t e,
                               size_t i, const Resume& resume) {
  findings_.Add([&] {
    const ItemKey& named = e < expected_.size() ? expected_[e] : issued[i].key;
    return Violation{
        .rule = absl::StrCat("a step is issued in the order of ", ModeRowName(run_->sharding)),
        .rank = rank.value,
        .step = step,
        .unit = ItemUnit(*run_, named),
        .tensor = ItemTensor(*run_, named),
        .event = i < issued.size() ? issued[i].event : -1,
        .expected = Between(expected_.size(), e, [&](size_t at) { return expected_[at]; }),
        .actual = Between(issued.size(), i, [&](size_t at) { return issued[at].key; }),
        .likely_cause = Cause(issued, e, i, resume)};
  });
}

std::string IssueOrder::Cause(const std::vector<Issued>& issued, size_t e, size_t i,
                              const Resume& resume) const {
  const absl::string_view other = OtherPrefetch(issued);
  if (!other.empty()) return absl::StrCat("this is the order of prefetch ", other);
  const auto issued_anywhere = [&](const ItemKey& key) {
    return std::any_of(issued.begin(), issued.end(),
                       [&](const Issued& item) { return item.key == key; });
  };
  if (resume.issued == 0 && e < expected_.size()) {
    const std::string item = ItemText(*run_, expected_[e]);
    return issued_anywhere(expected_[e]) ? absl::StrCat(item, " is issued at another place")
                                         : absl::StrCat(item, " is never issued in this step");
  }
  if (resume.expected == 0 && i < issued.size()) {
    const std::string item = ItemText(*run_, issued[i].key);
    const bool known =
        std::find(expected_.begin(), expected_.end(), issued[i].key) != expected_.end();
    return known ? absl::StrCat(item, " is issued here and not, or not only, where it belongs")
                 : absl::StrCat("the mode has no ", item);
  }
  return "";
}

absl::string_view IssueOrder::OtherPrefetch(const std::vector<Issued>& issued) const {
  if (mode_ != Mode::kFullShard) return "";
  for (const Prefetch prefetch :
       {Prefetch::kBackwardPre, Prefetch::kBackwardPost, Prefetch::kNone}) {
    if (prefetch == run_->sharding.prefetch) continue;
    RunDescription other = *run_;
    other.sharding.prefetch = prefetch;
    const std::vector<ItemKey> keys = KeysOf(mode_, ExpectedSequence(other));
    const bool same =
        std::equal(keys.begin(), keys.end(), issued.begin(), issued.end(),
                   [](const ItemKey& key, const Issued& item) { return key == item.key; });
    if (same) return Name(prefetch);
  }
  return "";
}

CheckResult IssueOrder::Finish() {
  if (!undefined_.empty()) findings_.NotObserved(undefined_);
  return findings_.Finish();
}

}  // namespace

std::unique_ptr<Check> MakeIssueOrder() { return std::make_unique<IssueOrder>(); }

}  // namespace shardproof
