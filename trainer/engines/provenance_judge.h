// What the tests of the provenance engine share: a run through engine and check, and its words.
#ifndef TRAINER_ENGINES_PROVENANCE_JUDGE_H_
#define TRAINER_ENGINES_PROVENANCE_JUDGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "invariants/checks/check.h"
#include "invariants/checks/provenance.h"
#include "trainer/engines/engine_parts.h"
#include "trainer/engines/provenance_engine.h"

namespace shardproof {

inline constexpr int64_t kMemory = int64_t{1} << 32;

inline absl::StatusOr<CheckResult> Judge(const RunDescription& run, EngineParts parts) {
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      MakeProvenanceEngine(run, std::move(parts), kMemory);
  if (!engine.ok()) return engine.status();
  const std::unique_ptr<Check> check = MakeProvenance();
  check->Begin(run);
  for (int64_t step = 0; step < run.data.steps; ++step) {
    const absl::StatusOr<const StepObservation*> observed = (*engine)->Step();
    if (!observed.ok()) return observed.status();
    check->Step(**observed, nullptr);
  }
  return check->Finish();
}

inline std::string Text(const CheckResult& result) {
  std::string text = absl::StrCat(Name(result.verdict), " ", result.reason, "\n");
  for (const Violation& violation : result.violations) {
    absl::StrAppend(&text, Describe(result, violation), "\n");
  }
  return text;
}

}  // namespace shardproof

#endif  // TRAINER_ENGINES_PROVENANCE_JUDGE_H_
