#include "invariants/checks/check.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace shardproof {
namespace {

struct NamedRatio {
  const char* name;
  double value;
};

// Appends the names of the candidates that `ratio` fits; a candidate of 1 names nothing.
template <size_t n>
std::string NamesWithin(const NamedRatio (&candidates)[n], double ratio) {
  std::string names;
  for (const NamedRatio& candidate : candidates) {
    if (candidate.value == 1.0) continue;
    if (std::abs(ratio - candidate.value) > 0.01 * candidate.value) continue;
    absl::StrAppend(&names, names.empty() ? "" : " or ", candidate.name);
  }
  return names;
}

}  // namespace

absl::string_view Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kFail:
      return "fail";
    case Verdict::kRefused:
      return "refused";
    case Verdict::kInferred:
      return "inferred";
    case Verdict::kNotObserved:
      return "not_observed";
  }
  return "?";
}

void Findings::NotObserved(absl::string_view reason) {
  if (!not_observed_) result_.reason = std::string(reason);  // the first reason is the cause
  not_observed_ = true;
}

void Findings::Inferred(absl::string_view reason) {
  if (!inferred_) note_ = std::string(reason);
  inferred_ = true;
}

void Findings::Note(absl::string_view reason) {
  if (note_.empty()) note_ = std::string(reason);
}

CheckResult Findings::Finish() {
  if (!empty()) {
    result_.verdict = Verdict::kFail;
    result_.reason.clear();
  } else if (not_observed_ || !observed_) {
    result_.verdict = Verdict::kNotObserved;
    if (result_.reason.empty()) result_.reason = "nothing was observed";
  } else {
    result_.verdict = inferred_ ? Verdict::kInferred : Verdict::kPass;
    result_.reason = note_;
  }
  return result_;
}

std::string NameRatio(double ratio, const RunDescription& run) {
  // With one micro-batch K, 1/K and the products name nothing of their own.
  const double n = ShardCount(run.sharding);
  const double k = static_cast<double>(run.data.num_micro_batches);
  const double nk = n == 1 || k == 1 ? 1 : n * k;
  const NamedRatio exact[] = {{"1/N", 1 / n}, {"N", n},   {"1/K", 1 / k},
                              {"K", k},       {"NK", nk}, {"1/(NK)", 1 / nk}};
  const std::string names = NamesWithin(exact, ratio);
  if (!names.empty()) return names;
  const NamedRatio rare[] = {
      {"2^K", std::exp2(k)}, {"sqrt(N)", std::sqrt(n)}, {"1/sqrt(N)", 1 / std::sqrt(n)}};
  return NamesWithin(rare, ratio);
}

std::string Describe(const CheckResult& result, const Violation& violation) {
  std::string text = absl::StrCat(result.name, ": ", violation.rule);
  const char* separator = " At ";
  const auto place = [&](absl::string_view what, absl::string_view value) {
    absl::StrAppend(&text, separator, what, " ", value);
    separator = ", ";
  };
  if (!text.empty() && text.back() != '.') text += '.';
  if (violation.rank >= 0) place("rank", absl::StrCat(violation.rank));
  if (violation.step >= 0) place("step", absl::StrCat(violation.step));
  if (!violation.unit.empty()) place("unit", violation.unit);
  if (!violation.tensor.empty()) place("tensor", violation.tensor);
  if (violation.element >= 0) place("element", absl::StrCat(violation.element));
  if (violation.event >= 0) place("event", absl::StrCat(violation.event));
  if (separator[0] == ',') text += '.';
  if (!violation.expected.empty()) absl::StrAppend(&text, " Expected ", violation.expected);
  if (!violation.actual.empty()) {
    absl::StrAppend(&text, violation.expected.empty() ? " Found " : ", found ", violation.actual);
  }
  if (violation.ratio != 0) absl::StrAppendFormat(&text, " (ratio %.6g)", violation.ratio);
  if (!violation.expected.empty() || !violation.actual.empty()) text += '.';
  if (violation.tolerance_share != 0) {
    absl::StrAppendFormat(&text, " Share of the tolerance: %.3g.", violation.tolerance_share);
  }
  if (!violation.likely_cause.empty()) {
    absl::StrAppend(&text, " Likely cause: ", violation.likely_cause);
    if (text.back() != '.') text += '.';
  }
  return text;
}

}  // namespace shardproof
