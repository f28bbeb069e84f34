#include "invariants/report/failure_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace shardproof {
namespace {

// More places than this say no more, and hide the next rule.
constexpr size_t kMostPlaces = 6;

std::string Place(const Violation& violation) {
  std::vector<std::string> parts;
  if (violation.rank >= 0) parts.push_back(absl::StrCat("rank ", violation.rank));
  if (violation.step >= 0) parts.push_back(absl::StrCat("step ", violation.step));
  if (!violation.unit.empty()) parts.push_back(absl::StrCat("unit ", violation.unit));
  if (!violation.tensor.empty()) parts.push_back(absl::StrCat("tensor ", violation.tensor));
  if (violation.element >= 0) parts.push_back(absl::StrCat("element ", violation.element));
  if (violation.event >= 0) parts.push_back(absl::StrCat("event ", violation.event));
  return absl::StrJoin(parts, ", ");
}

std::string RatioText(const Violation& violation) {
  return violation.ratio == 0 ? "" : absl::StrFormat(" (ratio %.6g)", violation.ratio);
}

std::string Line(absl::string_view label, absl::string_view text) {
  return text.empty() ? "" : absl::StrFormat("  %-8s  %s\n", label, text);
}

std::string InFull(const Violation& violation) {
  std::string text = absl::StrCat(Line("rule", violation.rule), Line("at", Place(violation)),
                                  Line("expected", violation.expected));
  if (!violation.actual.empty()) {
    absl::StrAppend(&text, Line("found", absl::StrCat(violation.actual, RatioText(violation))));
  }
  if (violation.tolerance_share != 0) {
    absl::StrAppend(
        &text, Line("share", absl::StrFormat("%.3g of the tolerance", violation.tolerance_share)));
  }
  return absl::StrCat(text, Line("cause", violation.likely_cause));
}

std::string OtherPlaces(const std::vector<const Violation*>& same_rule) {
  std::string text;
  const size_t end = std::min(same_rule.size(), kMostPlaces + 1);
  for (size_t i = 1; i < end; ++i) {
    const std::string place = absl::StrCat(Place(*same_rule[i]), RatioText(*same_rule[i]));
    absl::StrAppend(&text, Line(i == 1 ? "also at" : "", place));
  }
  if (end < same_rule.size()) {
    absl::StrAppend(&text, Line("", absl::StrCat("and ", same_rule.size() - end, " more")));
  }
  return text;
}

}  // namespace

std::string FailureText(const CheckResult& check) {
  std::vector<std::vector<const Violation*>> rules;
  for (const Violation& violation : check.violations) {
    auto same = std::find_if(rules.begin(), rules.end(),
                             [&](const auto& rule) { return rule[0]->rule == violation.rule; });
    if (same == rules.end()) same = rules.insert(rules.end(), {{}});
    same->push_back(&violation);
  }
  std::string text;
  for (const std::vector<const Violation*>& rule : rules) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", InFull(*rule[0]), OtherPlaces(rule));
  }
  const int64_t left_out = check.violation_count - static_cast<int64_t>(check.violations.size());
  if (left_out > 0) {
    absl::StrAppend(&text, "\n  and ", left_out, left_out == 1 ? " violation" : " violations",
                    " more, not listed\n");
  }
  return text;
}

}  // namespace shardproof
