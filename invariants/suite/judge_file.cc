#include "invariants/suite/judge_file.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "invariants/observation/observation_io.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

bool ShowsValues(const StepObservation& step) {
  return std::any_of(step.states.begin(), step.states.end(), [](const RankState& state) {
    return std::any_of(state.segments.begin(), state.segments.end(),
                       [](const StateSegment& segment) { return segment.values != nullptr; });
  });
}

// The closed forms write a step out operation by operation, and checks keep figures by rank. A
// file of one line may name any number of either.
absl::Status FitsInMemory(const RunDescription& run, int64_t memory_limit_bytes) {
  constexpr double kBytesOfOperation = 1024;  // over all checks
  constexpr double kBytesOfRank = 1024;
  const ModelDescription& model = run.model;
  const double operations =
      static_cast<double>(run.data.num_micro_batches) *
          static_cast<double>(2 * model.stages.size() + 3 * model.units.size()) +
      static_cast<double>(2 * model.tensors.size());
  const double bytes =
      operations * kBytesOfOperation + run.sharding.world_size.value * kBytesOfRank;
  if (bytes <= static_cast<double>(memory_limit_bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "run: num_micro_batches %d and world_size %d make a step that needs about %.0f bytes to "
      "judge; accepted: %d, which are free",
      run.data.num_micro_batches, run.sharding.world_size.value, bytes, memory_limit_bytes));
}

}  // namespace

absl::StatusOr<Oracle> OracleFor(const RunDescription& run, const StepObservation& first,
                                 int64_t memory_limit_bytes) {
  Oracle oracle;
  if (!ShowsValues(first)) {
    oracle.missing = "the first step shows no values to compare";
    return oracle;
  }
  if (run.model.kind == ModelKind::kOpaque) {
    oracle.missing =
        absl::StrCat("model '", run.model.name, "' has layers that replicated training lacks");
    return oracle;
  }
  ReferenceOptions options;
  // Sums of unknown order are judged within bounds, which need it.
  options.gradient_magnitude = first.any_order;
  const int64_t needed = ReplicatedTrainer::RequiredBytes(run, options);
  if (needed > memory_limit_bytes) {
    oracle.missing = absl::StrCat("replicated training needs ", needed, " bytes of memory, and ",
                                  memory_limit_bytes, " are free");
    return oracle;
  }
  absl::StatusOr<std::unique_ptr<ReplicatedTrainer>> trainer =
      ReplicatedTrainer::Create(run, options);
  if (trainer.ok()) {
    oracle.trainer = *std::move(trainer);
  } else if (trainer.status().code() == absl::StatusCode::kUnimplemented) {
    oracle.missing = std::string(trainer.status().message());
  } else {
    return trainer.status();
  }
  return oracle;
}

absl::StatusOr<JudgedFile> JudgeFile(std::istream* input, const ModelImporter& importer,
                                     int64_t memory_limit_bytes, const JudgeOptions& options) {
  SHARDPROOF_ASSIGN_OR_RETURN(ObservationReader reader, ObservationReader::Open(input, importer));
  JudgedFile judged;
  judged.run = reader.run();
  SHARDPROOF_RETURN_IF_ERROR(FitsInMemory(judged.run, memory_limit_bytes));
  // Whether an oracle makes sense is decided by the first step, so that one is read ahead.
  SHARDPROOF_ASSIGN_OR_RETURN(std::optional<StoredStep> step, reader.Next());
  SHARDPROOF_ASSIGN_OR_RETURN(
      const Oracle oracle,
      OracleFor(judged.run, step ? step->observation : StepObservation(), memory_limit_bytes));
  bool read_ahead = true;
  const StepSource next_step = [&]() -> absl::StatusOr<const StepObservation*> {
    if (!read_ahead) {
      SHARDPROOF_ASSIGN_OR_RETURN(step, reader.Next());
    }
    read_ahead = false;
    return step ? &step->observation : nullptr;
  };
  SHARDPROOF_ASSIGN_OR_RETURN(judged.result, JudgeSteps(judged.run, next_step, oracle, options));
  return judged;
}

}  // namespace shardproof
