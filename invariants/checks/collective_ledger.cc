#include "invariants/checks/collective_ledger.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "invariants/checks/issued_items.h"
#include "invariants/closed_forms/closed_forms.h"

namespace shardproof {
namespace {

// One line of the ledger: which collective, and how it was carried out.
struct Entry {
  ItemKey key;
  int64_t elements = 0;
  Dtype dtype = Dtype::kFloat32;
  Group group;
  auto operator<=>(const Entry&) const = default;
};

template <typename Item>
Entry EntryOf(Mode mode, const Item& item) {
  Entry entry{KeyOf(mode, item), item.elements, item.dtype, item.group};
  entry.key.micro_batch = -1;  // issue_order's
  if (entry.group.count == 1) entry.group.stride = 1;
  return entry;
}

// An entry and its place: in the expected sequence, or in the rank's issue order.
struct Placed {
  Entry entry;
  int32_t place = 0;
};

// One difference between ledger and closed form; -1: this side has nothing.
struct Difference {
  int32_t expected = -1;  // index into the expected entries
  int32_t actual = -1;    // index into the actual entries
};

// Pairs equal elements of two sorted lists of Placed and keeps the others.
template <typename Less, typename Pair>
void PairUp(std::vector<Placed>* a, std::vector<Placed>* b, Less less, Pair pair) {
  const auto by = [&](const Placed& x, const Placed& y) {
    if (less(x.entry, y.entry)) return true;
    return !less(y.entry, x.entry) && x.place < y.place;
  };
  std::sort(a->begin(), a->end(), by);
  std::sort(b->begin(), b->end(), by);
  std::vector<Placed> rest_a, rest_b;
  size_t i = 0, j = 0;
  while (i < a->size() && j < b->size()) {
    if (less((*a)[i].entry, (*b)[j].entry)) {
      rest_a.push_back((*a)[i++]);
    } else if (less((*b)[j].entry, (*a)[i].entry)) {
      rest_b.push_back((*b)[j++]);
    } else {
      pair((*a)[i++], (*b)[j++]);
    }
  }
  rest_a.insert(rest_a.end(), a->begin() + i, a->end());
  rest_b.insert(rest_b.end(), b->begin() + j, b->end());
  *a = std::move(rest_a);
  *b = std::move(rest_b);
}

constexpr size_t kPurposes = static_cast<size_t>(Purpose::kNone) + 1;

// The table's columns, filled by counting.
using Counts = std::array<std::array<int64_t, 4>, 5>;  // [CollectiveKind][Phase]

class CollectiveLedger : public Check {
 public:
  absl::string_view name() const override { return "collective_ledger"; }
  void Begin(const RunDescription& run) override;
  void Step(const StepObservation& observed, const ReferenceStep* reference) override;
  CheckResult Finish() override;

 private:
  struct Bytes {
    int64_t payload = 0;
    double bus = 0;
  };

  // True when the rank's collectives of the mode, and its clip norm, are the expected ones in
  // the expected order.
  bool Matches(const RankEvents& events) const;
  void CheckLedger(int64_t step, const RankEvents& events);
  void CheckCounts(int64_t step, const RankEvents& events);
  void CheckTotals(int64_t step, const RankEvents& events);
  void CheckEndings(int64_t step, const RankEvents& events);
  void CheckKernels(int64_t step, const DeviceWitness& device);
  void CountOthers(const RankEvents& events);
  void CheckAgreement(int64_t step, const RankEvents& first, const RankEvents& other);
  void AddDifference(int64_t step, const RankEvents& events, const Difference& difference);
  std::string HowText(const Entry& entry) const;
  static void AddBytes(const Entry& entry, Bytes* bytes);

  Findings findings_{"collective_ledger"};
  const RunDescription* run_ = nullptr;
  Mode mode_ = Mode::kReplicated;
  absl::string_view undefined_;
  std::vector<Entry> expected_;  // in issue order
  Counts expected_counts_{};
  std::array<int64_t, kCollectiveKindCount> expected_kernels_{};
  RankCoverage coverage_;
  std::array<int64_t, kPurposes> others_{};  // outside the closed form, on the first rank shown
};

void CollectiveLedger::Begin(const RunDescription& run) {
  run_ = &run;
  mode_ = run.sharding.mode;
  undefined_ = NoStepRule(run);
  coverage_.Begin(run.sharding.world_size.value);
  const ClosedForms forms(run);
  for (const ExpectedItem& item : forms.Sequence()) {
    if (item.kind == EventKind::kCollective) expected_.push_back(EntryOf(mode_, item));
  }
  for (const Entry& entry : expected_) {
    if (entry.group.count == 1 || entry.elements == 0) continue;
    ++expected_kernels_[static_cast<size_t>(entry.key.collective)];
  }
  const ExpectedCounts counts = forms.CollectiveCounts();
  const auto expect = [&](CollectiveKind kind, Phase phase, int64_t count) {
    expected_counts_[static_cast<size_t>(kind)][static_cast<size_t>(phase)] = count;
  };
  expect(CollectiveKind::kAllReduce, Phase::kBackward, counts.all_reduce);
  expect(CollectiveKind::kAllGather, Phase::kForward, counts.all_gather_forward);
  expect(CollectiveKind::kAllGather, Phase::kBackward, counts.all_gather_backward);
  expect(CollectiveKind::kAllGather, Phase::kOptimizer, counts.all_gather_optimizer);
  expect(CollectiveKind::kReduceScatter, Phase::kBackward, counts.reduce_scatter);
  expect(CollectiveKind::kBroadcast, Phase::kOptimizer, counts.broadcast);
}

void CollectiveLedger::Step(const StepObservation& observed, const ReferenceStep*) {
  if (!undefined_.empty()) return;
  if (observed.events.empty()) {
    findings_.NotObserved(absl::StrCat("step ", observed.step, " showed no events"));
    return;
  }
  findings_.Observed();
  coverage_.Clear();
  for (const RankEvents& events : observed.events) {
    if (const int32_t bad = coverage_.Add(events.ranks); bad >= 0) {
      findings_.Add([&] {
        return Violation{.rule = "the events are of ranks of the run, each once",
                         .rank = bad,
                         .step = observed.step,
                         .actual = absl::StrCat("rank ", bad, " again, or no rank of the run")};
      });
    }
    CheckEndings(observed.step, events);
    if (&events == &observed.events[0]) CountOthers(events);
    if (!Matches(events)) CheckLedger(observed.step, events);
    CheckCounts(observed.step, events);
  }
  for (const DeviceWitness& device : observed.devices) CheckKernels(observed.step, device);
  for (size_t i = 1; i < observed.events.size(); ++i) {
    CheckAgreement(observed.step, observed.events[0], observed.events[i]);
  }
  if (const int32_t missing = coverage_.Missing(); missing >= 0) {
    findings_.NotObserved(
        absl::StrCat("step ", observed.step, " showed no events of rank ", missing));
  }
}

bool CollectiveLedger::Matches(const RankEvents& events) const {
  size_t next = 0;
  for (const Event& event : events.events) {
    if (event.kind != EventKind::kCollective || !IsInSequence(event.purpose)) continue;
    if (next == expected_.size()) return false;
    if (EntryOf(mode_, event) != expected_[next++]) return false;
  }
  return next == expected_.size();
}

void CollectiveLedger::CheckEndings(int64_t step, const RankEvents& events) {
  for (size_t i = 0; i < events.events.size(); ++i) {
    const Event& event = events.events[i];
    if (event.kind != EventKind::kCollective) continue;
    if (event.completed && event.purpose != Purpose::kNone) continue;
    findings_.Add([&] {
      const ItemKey key = KeyOf(mode_, event);
      Violation violation{.rank = events.ranks.first,
                          .step = step,
                          .unit = ItemUnit(*run_, key),
                          .tensor = ItemTensor(*run_, key),
                          .event = static_cast<int32_t>(i)};
      if (event.purpose == Purpose::kNone) {
        violation.rule = "every collective says what it is for";
        violation.actual = absl::StrCat(ItemText(*run_, key), ", without a purpose");
        violation.likely_cause = "a collective that the mode does not need";
        return violation;
      }
      violation.rule = "every collective ends within its step";
      violation.actual = absl::StrCat(ItemText(*run_, key), ", issued and never completed");
      violation.likely_cause =
          "a rank of its group never arrived; look at what the others issued at this place";
      return violation;
    });
  }
}

void CollectiveLedger::CheckKernels(int64_t step, const DeviceWitness& device) {
  for (size_t kind = 0; kind < device.collective_kernels.size(); ++kind) {
    const int64_t expected = kind < kCollectiveKindCount ? expected_kernels_[kind] : 0;
    const int64_t actual = device.collective_kernels[kind];
    if (actual == expected) continue;
    findings_.Add([&] {
      return Violation{
          .rule = absl::StrCat("the GPU runs one kernel for each ",
                               KindText(static_cast<CollectiveKind>(kind)), " of ",
                               ModeRowName(run_->sharding), ", and no other"),
          .rank = device.rank,
          .step = step,
          .expected = absl::StrCat(expected),
          .actual = absl::StrCat(actual),
          .ratio = expected == 0 ? 0 : static_cast<double>(actual) / expected,
          .likely_cause =
              actual < expected
                  ? "collectives were issued in a group, which runs them as one kernel, "
                    "or were never issued"
                  : "somebody communicates beside what the trainer says it issued"};
    });
  }
}

// Those that no closed form places. One rank is counted: the others must agree with it.
void CollectiveLedger::CountOthers(const RankEvents& events) {
  for (const Event& event : events.events) {
    if (event.kind != EventKind::kCollective || IsInSequence(event.purpose)) continue;
    if (event.purpose == Purpose::kNone) continue;  // CheckEndings
    ++others_[static_cast<size_t>(event.purpose)];
  }
}

void CollectiveLedger::CheckCounts(int64_t step, const RankEvents& events) {
  Counts counts{};
  for (const Event& event : events.events) {
    if (event.kind != EventKind::kCollective || !IsOfMode(event.purpose)) continue;
    ++counts[static_cast<size_t>(event.collective)][static_cast<size_t>(event.phase)];
  }
  if (counts == expected_counts_) return;
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    for (size_t phase = 0; phase < counts[kind].size(); ++phase) {
      const int64_t expected = expected_counts_[kind][phase];
      const int64_t actual = counts[kind][phase];
      if (actual == expected) continue;
      findings_.Add([&] {
        return Violation{
            .rule = absl::StrCat("the ", KindText(static_cast<CollectiveKind>(kind)), "s in ",
                                 Name(static_cast<Phase>(phase)), " are as many as the table of ",
                                 ModeRowName(run_->sharding), " says"),
            .rank = events.ranks.first,
            .step = step,
            .expected = absl::StrCat(expected),
            .actual = absl::StrCat(actual),
            .ratio = expected == 0 ? 0 : static_cast<double>(actual) / expected,
            .likely_cause = "the collectives named above"};
      });
    }
  }
}

void CollectiveLedger::CheckLedger(int64_t step, const RankEvents& events) {
  std::vector<Placed> missing, extra;
  for (size_t i = 0; i < expected_.size(); ++i) {
    missing.push_back({expected_[i], static_cast<int32_t>(i)});
  }
  for (size_t i = 0; i < events.events.size(); ++i) {
    const Event& event = events.events[i];
    if (event.kind != EventKind::kCollective || !IsInSequence(event.purpose)) continue;
    extra.push_back({EntryOf(mode_, event), static_cast<int32_t>(i)});
  }
  PairUp(&missing, &extra, std::less<Entry>(), [](const Placed&, const Placed&) {});
  // What is left on both sides under one name was carried out differently.
  std::vector<Difference> differences;
  PairUp(
      &missing, &extra, [](const Entry& a, const Entry& b) { return a.key < b.key; },
      [&](const Placed& a, const Placed& b) {
        differences.push_back({a.place, b.place});
      });
  for (const Placed& placed : missing) differences.push_back({placed.place, -1});
  for (const Placed& placed : extra) differences.push_back({-1, placed.place});
  // Missing ones first: in the order in which the step should have issued them.
  std::sort(differences.begin(), differences.end(), [](const Difference& a, const Difference& b) {
    if ((a.expected < 0) != (b.expected < 0)) return b.expected < 0;
    return a.expected != b.expected ? a.expected < b.expected : a.actual < b.actual;
  });
  for (const Difference& difference : differences) AddDifference(step, events, difference);
  if (!differences.empty()) CheckTotals(step, events);
}

std::string CollectiveLedger::HowText(const Entry& entry) const {
  std::string text =
      absl::StrCat(ItemText(*run_, entry.key), " of ", entry.elements, " ", Name(entry.dtype),
                   " among ", entry.group.count, " ranks from ", entry.group.first);
  if (entry.group.stride != 1) absl::StrAppend(&text, " by ", entry.group.stride);
  return text;
}

// What a clip norm too many most often means.
absl::string_view CauseOfExtraClipNorm(const RunDescription& run) {
  if (run.clip_grad_norm == 0) {
    return "gradients are clipped by a setting that the run description does not have";
  }
  const Mode mode = run.sharding.mode;
  return ShardsUnits(mode) || mode == Mode::kZero2
             ? "the norm is summed again, unit by unit or bucket by bucket, or counted N times"
             : "every rank has the whole gradients: their squares would be counted N times";
}

// What each difference most often means.
absl::string_view CauseOf(const RunDescription& run, const Entry* expected, const Entry* actual) {
  const Entry* const any = expected != nullptr ? expected : actual;
  if (any->key.purpose == Purpose::kClipNorm) {
    if (actual == nullptr) return "each rank clips by the norm of its own shards alone";
    if (expected == nullptr) return CauseOfExtraClipNorm(run);
  }
  if (actual == nullptr) {
    if (expected->key.purpose == Purpose::kReduceGradients) {
      return "gradients of this set stay local to each rank; compare the reduced gradients";
    }
    return "the set is used or kept without being fetched from the other ranks: stale "
           "parameters, or resharding skipped";
  }
  if (expected == nullptr) {
    return "communication that the mode does not need: gathered or reduced twice, or in another "
           "phase";
  }
  if (actual->dtype != expected->dtype) return "communicated in another precision";
  if (actual->group != expected->group) return "communicated within another group of ranks";
  return "another layout or padding than the run description says";
}

void CollectiveLedger::AddDifference(int64_t step, const RankEvents& events,
                                     const Difference& difference) {
  findings_.Add([&] {
    Entry found;
    const Entry* expected = difference.expected < 0 ? nullptr : &expected_[difference.expected];
    const Entry* actual = nullptr;
    if (difference.actual >= 0) {
      found = EntryOf(mode_, events.events[difference.actual]);
      actual = &found;
    }
    const Entry& named = actual != nullptr ? *actual : *expected;
    Violation violation{.rank = events.ranks.first,
                        .step = step,
                        .unit = ItemUnit(*run_, named.key),
                        .tensor = ItemTensor(*run_, named.key),
                        .event = difference.actual,
                        .expected = expected != nullptr ? HowText(*expected) : "nothing",
                        .actual = actual != nullptr ? HowText(*actual) : "nothing",
                        .likely_cause = std::string(CauseOf(*run_, expected, actual))};
    const std::string item = ItemText(*run_, named.key);
    if (actual == nullptr) {
      violation.rule = absl::StrCat("a step sends all that its mode needs: ", item, " is missing");
    } else if (expected == nullptr) {
      violation.rule = absl::StrCat("a step sends only what its mode needs: ", item, " is extra");
    } else {
      violation.rule =
          absl::StrCat("elements, dtype, group and root of ", item, " are those of the mode");
      if (expected->elements != 0 && actual->elements != expected->elements) {
        violation.ratio = static_cast<double>(actual->elements) / expected->elements;
      }
    }
    return violation;
  });
}

void CollectiveLedger::AddBytes(const Entry& entry, Bytes* bytes) {
  const int64_t payload = entry.elements * DtypeBytes(entry.dtype);
  bytes->payload += payload;
  bytes->bus += static_cast<double>(payload) * BusFactor(entry.key.collective, entry.group.count);
}

void CollectiveLedger::CheckTotals(int64_t step, const RankEvents& events) {
  Bytes expected, actual;
  for (const Entry& entry : expected_) {
    if (IsOfMode(entry.key.purpose)) AddBytes(entry, &expected);
  }
  for (const Event& event : events.events) {
    if (event.kind != EventKind::kCollective || !IsOfMode(event.purpose)) continue;
    AddBytes(EntryOf(mode_, event), &actual);
  }
  if (actual.payload == expected.payload && actual.bus == expected.bus) return;
  findings_.Add([&] {
    const auto text = [](const Bytes& bytes) {
      return absl::StrFormat("%d payload bytes, %.0f bus bytes", bytes.payload, bytes.bus);
    };
    Violation violation{.rule = "payload and bus bytes of a step are those of its mode",
                        .rank = events.ranks.first,
                        .step = step,
                        .expected = text(expected),
                        .actual = text(actual),
                        .likely_cause = "the collectives named above"};
    if (expected.payload != 0) {
      violation.ratio = static_cast<double>(actual.payload) / expected.payload;
    }
    return violation;
  });
}

void CollectiveLedger::CheckAgreement(int64_t step, const RankEvents& first,
                                      const RankEvents& other) {
  const auto next = [](const RankEvents& events, size_t i) {
    while (i < events.events.size() && events.events[i].kind != EventKind::kCollective) ++i;
    return i;
  };
  const auto same = [](const Event& a, const Event& b) {
    return a.collective == b.collective && a.purpose == b.purpose && a.elements == b.elements &&
           a.dtype == b.dtype && a.group == b.group && a.root == b.root;
  };
  size_t i = next(first, 0), j = next(other, 0);
  while (i < first.events.size() && j < other.events.size() &&
         same(first.events[i], other.events[j])) {
    i = next(first, i + 1);
    j = next(other, j + 1);
  }
  if (i == first.events.size() && j == other.events.size()) return;
  findings_.Add([&] {
    const auto text = [&](const RankEvents& events, size_t place) {
      const std::string rank = absl::StrCat("rank ", events.ranks.first, " issues ");
      if (place == events.events.size()) return rank + "nothing more";
      return absl::StrCat(rank, HowText(EntryOf(mode_, events.events[place])));
    };
    Violation violation{.rule = "every rank issues its collectives in the same order",
                        .rank = other.ranks.first,
                        .step = step,
                        .expected = text(first, i),
                        .actual = text(other, j),
                        .likely_cause =
                            "ranks took different branches; on a real network each "
                            "waits for the other"};
    if (j < other.events.size()) {
      violation.event = static_cast<int32_t>(j);
      violation.unit = ItemUnit(*run_, KeyOf(mode_, other.events[j]));
    }
    return violation;
  });
}

CheckResult CollectiveLedger::Finish() {
  if (!undefined_.empty()) findings_.NotObserved(undefined_);
  std::string others;
  for (size_t purpose = 0; purpose < others_.size(); ++purpose) {
    if (others_[purpose] == 0) continue;
    absl::StrAppend(&others, others.empty() ? "" : " and ", others_[purpose],
                    " collectives of purpose ", Name(static_cast<Purpose>(purpose)));
  }
  if (!others.empty()) findings_.Inferred(others + " are outside the closed form");
  return findings_.Finish();
}

}  // namespace

std::unique_ptr<Check> MakeCollectiveLedger() { return std::make_unique<CollectiveLedger>(); }

}  // namespace shardproof
