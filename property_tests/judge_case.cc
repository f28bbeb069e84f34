#include "property_tests/judge_case.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "invariants/closed_forms/closed_forms.h"
#include "invariants/report/failure_text.h"

namespace shardproof {
namespace {

constexpr char kKernelWitness[] = "kernel_witness";

EngineVerdict WithoutJudgement(EngineKind engine, absl::string_view cause, absl::string_view reason,
                               bool is_bad_input) {
  return {.engine = engine,
          .passes = false,
          .is_bad_input = is_bad_input,
          .cause = std::string(cause),
          .headline = absl::StrCat(cause, ": ", reason)};
}

bool HasMoments(const RunDescription& run) {
  const std::vector<TensorSpec>& tensors = run.model.tensors;
  return MomentsOf(run.optimizer) > 0 &&
         std::any_of(tensors.begin(), tensors.end(), [](const TensorSpec& tensor) {
           return tensor.trainable && Elements(tensor) > 0;
         });
}

// Whether the engine shows what the check needs.
bool Shows(EngineKind engine, const RunDescription& run, absl::string_view check) {
  if (MovesValues(engine)) return true;
  // Of all places, the accounting engine shows those of moments.
  if (check == "padding" && engine == EngineKind::kAccounting) return HasMoments(run);
  if (check == "provenance") return engine == EngineKind::kProvenance;
  // Values, and for the lifecycle which update they have seen.
  return check != "numeric_equivalence" && check != "liveness" && check != "unshard_lifecycle";
}

}  // namespace

bool Satisfies(const RunDescription& run, EngineKind engine, const CheckResult& check) {
  switch (check.verdict) {
    case Verdict::kPass:
      return true;
    case Verdict::kInferred:
    case Verdict::kNotObserved:
      if (MovesValues(engine)) return false;
      return !Shows(engine, run, check.name) || !NoStepRule(run).empty() ||
             !NoStateRule(run).empty();
    case Verdict::kFail:
    case Verdict::kRefused:
      return false;
  }
  return false;
}

std::string WitnessComplaint(const RunDescription& run, EngineKind engine,
                             const std::vector<DeviceWitness>& devices) {
  if (!NeedsGpus(engine)) return "";
  for (int32_t rank = 0; rank < run.sharding.world_size.value; ++rank) {
    const bool shown = std::any_of(devices.begin(), devices.end(), [&](const auto& device) {
      return device.rank == rank && !device.collective_kernels.empty();
    });
    if (shown == (engine == EngineKind::kCuda)) continue;
    return absl::StrCat("rank ", rank, " shows ", shown ? "" : "no ",
                        "kernels of its collectives; on ", Name(engine),
                        shown ? " there must be none" : " there must be a count of every kind");
  }
  return "";
}

EngineVerdict JudgeCase(const RunDescription& run, const CaseOptions& options) {
  const absl::StatusOr<CaseResult> result = RunCase(run, options);
  if (!result.ok()) {
    return WithoutJudgement(options.engine, "error", result.status().message(),
                            absl::IsResourceExhausted(result.status()));
  }
  if (result->verdict == Verdict::kRefused) {
    return WithoutJudgement(options.engine, "refused", result->refusal, /*is_bad_input=*/true);
  }
  EngineVerdict verdict = {.engine = options.engine};
  std::vector<std::string> names;
  for (const CheckResult& check : result->checks) {
    if (Satisfies(run, options.engine, check)) continue;
    names.push_back(check.name);
    const std::string reason =
        check.verdict == Verdict::kFail
            ? ""
            : absl::StrCat(check.name, " ", Name(check.verdict), ": ", check.reason, "\n");
    absl::StrAppend(&verdict.details, verdict.details.empty() ? "" : "\n", reason,
                    FailureText(check));
  }
  const std::string unwitnessed =
      result->judged_elsewhere ? ""
                               : WitnessComplaint(run, options.engine, result->figures.devices);
  if (!unwitnessed.empty()) {
    names.push_back(kKernelWitness);
    absl::StrAppend(&verdict.details, verdict.details.empty() ? "" : "\n", kKernelWitness, ": ",
                    unwitnessed, "\n");
  }
  if (names.empty()) return verdict;
  verdict.passes = false;
  verdict.cause = names[0];
  verdict.headline = absl::StrCat("FAILS ", absl::StrJoin(names, ", "));
  return verdict;
}

std::vector<EngineKind> AllEngines() {
  return {EngineKind::kCpu, EngineKind::kProvenance, EngineKind::kAccounting};
}

absl::StatusOr<std::vector<EngineKind>> ParseEngines(absl::string_view text, bool gpus) {
  if (text == "all") return AllEngines();
  const absl::StatusOr<EngineKind> engine = ParseEngineKind(text);
  if (engine.ok() && (gpus || !NeedsGpus(*engine))) return std::vector<EngineKind>{*engine};
  std::vector<std::string> accepted;
  for (const EngineKind each : AllEngines()) accepted.emplace_back(Name(each));
  if (gpus) accepted.insert(accepted.end(), {"cuda", "cuda_shared"});
  std::sort(accepted.begin(), accepted.end());
  return absl::InvalidArgumentError(absl::StrCat(
      "engine '", text, "' is ", engine.ok() ? "for GPUs, which are not used here" : "unknown",
      "; accepted: ", absl::StrJoin(accepted, ", "), ", all"));
}

}  // namespace shardproof
