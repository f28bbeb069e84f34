// A check: a fold over the steps of one run that ends in a verdict.
//
// begin(RunDescription), step(observed, reference) for each step, finish(). A check keeps
// what it needs between steps and nothing else; it sees Observations only, and takes its
// expectations from invariants/closed_forms or from the reference, never from the trainer.
#ifndef INVARIANTS_CHECKS_CHECK_H_
#define INVARIANTS_CHECKS_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

enum class Verdict : uint8_t {
  kPass,
  kFail,
  kRefused,      // the trainer declined the run with a clear reason
  kInferred,     // passed, but the expectation was inferred from the evidence
  kNotObserved,  // the evidence this check needs was not shown
};

absl::string_view Name(Verdict verdict);

// One broken rule, with everything that decides what to look at next. Members that do not
// apply stay at their defaults and are left out of messages.
struct Violation {
  std::string rule = {};  // the sentence that was broken: "a unit is gathered once ..."
  int32_t rank = -1;
  int64_t step = -1;
  std::string unit = {};    // name of the unit or bucket
  std::string tensor = {};  // name of the tensor
  int64_t element = -1;     // logical, row-major
  int32_t event = -1;       // index in the rank's issue order
  std::string expected = {};
  std::string actual = {};
  double ratio = 0;               // actual / expected where both are numbers and expected != 0
  double tolerance_share = 0;     // |difference| / tolerance; 0: the rule is exact
  std::string likely_cause = {};  // with the evidence to look at next
};

struct CheckResult {
  std::string name;
  Verdict verdict = Verdict::kNotObserved;
  std::string reason;  // for kNotObserved, kInferred and kRefused; with kPass: what it leaves out
  std::vector<Violation> violations;  // at most kMaxViolations; the first is the earliest
  int64_t violation_count = 0;        // all of them
};

inline constexpr int kMaxViolations = 16;

// The reason of a check that compares with the reference and was given none.
inline constexpr absl::string_view kNoReference = "no reference of this model was computed";

class Check {
 public:
  virtual ~Check() = default;
  virtual absl::string_view name() const = 0;
  // `run` must outlive the check. Called once.
  virtual void Begin(const RunDescription& run) = 0;
  // Steps come in order, each once. `reference` is null when no oracle ran.
  virtual void Step(const StepObservation& observed, const ReferenceStep* reference) = 0;
  virtual CheckResult Finish() = 0;
};

// Collects violations and turns "nothing seen" into kNotObserved.
class Findings {
 public:
  explicit Findings(absl::string_view check_name) { result_.name = std::string(check_name); }
  // Evidence was there, so that a run without violations is a pass.
  void Observed() { observed_ = true; }
  void NotObserved(absl::string_view reason);
  // Part of the evidence is outside the expectations: what would pass is inferred.
  void Inferred(absl::string_view reason);
  // What a pass leaves out. Inferred replaces it.
  void Note(absl::string_view reason);
  // Builds the violation only if it will be kept.
  template <typename MakeViolation>
  void Add(MakeViolation make) {
    observed_ = true;
    if (result_.violation_count++ < kMaxViolations) result_.violations.push_back(make());
  }
  bool empty() const { return result_.violation_count == 0; }
  // kFail with violations, kNotObserved when NotObserved was called or nothing was
  // observed, kInferred when Inferred was called, else kPass.
  CheckResult Finish();

 private:
  CheckResult result_;
  std::string note_;  // the reason of kInferred or kPass
  bool observed_ = false;
  bool not_observed_ = false;
  bool inferred_ = false;
};

// "N" or "1/K": the name of a ratio that almost names the fault, for the run's N and K; ""
// when it is none of 1/N, N, 1/K, K, NK, 1/(NK), 2^K, sqrt(N), 1/sqrt(N) within 1 %. Where N = K
// both are named, "N or K"; the last three only when no other fits. 1 has no name.
std::string NameRatio(double ratio, const RunDescription& run);

// One paragraph: check, rule, rank, step, unit, tensor, element, expected, actual, ratio,
// share of the tolerance, likely cause.
std::string Describe(const CheckResult& result, const Violation& violation);

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_CHECK_H_
