#include "invariants/suite/run_flags.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/mode_rows.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

absl::StatusOr<RunDescription> WholeRun(const std::string& text) {
  // Replay lines of runs whose model no name describes hold the JSON itself.
  if (!text.empty() && text[0] == '{') return ParseRunJson(text, ImportModel);
  const bool is_file = absl::EndsWith(text, ".json") && text.find('=') == std::string::npos;
  if (!is_file) return ParseRun(text, ImportModel);
  std::ifstream file(text);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("--run=", text, ": cannot read the file"));
  }
  return ParseRunJson(content.str(), ImportModel);
}

absl::Status NothingBesidesRun(const RunFlags& raw, const Flags& flags) {
  for (const std::string& other :
       {std::string("model"), std::string("world_size"), raw.mode_flag.name, std::string("layout"),
        std::string("steps"), std::string("micro_batch_size"), std::string("num_micro_batches"),
        std::string("grad_sync"), std::string("bucket_cap_mb"), std::string("optimizer"),
        std::string("clip_grad_norm"), std::string("seed")}) {
    if (!flags.given(other)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--run describes the whole run; leave out --", other));
  }
  return absl::OkStatus();
}

// Whether `ranks`, which the text asks for, are those that a launcher has started.
absl::Status CheckLaunched(absl::string_view text, int64_t ranks, const LaunchEnvironment& launch) {
  if (launch.launcher == Launcher::kNone || ranks == launch.world_size.value) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      text, " asks for ", ranks, " ranks, and ", Name(launch.launcher), " has started ",
      launch.world_size.value, " processes, one a rank: accepted is ", launch.world_size.value));
}

absl::StatusOr<std::vector<RunDescription>> RunsOfModes(const RunFlags& raw, int32_t world_size) {
  if (raw.model.empty()) {
    return absl::InvalidArgumentError(
        "--model is missing; accepted: mlp:8x2048, mlp:33,65,17:bias, probe:10x3,7, a "
        "config.json or a .safetensors file");
  }
  RunDescription base;
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<ModeRow> rows, ParseModeRows(raw.modes));
  SHARDPROOF_ASSIGN_OR_RETURN(const LayoutKind layout, ParseLayoutKind(raw.layout));
  SHARDPROOF_ASSIGN_OR_RETURN(base.sharding.grad_sync, ParseGradSync(raw.grad_sync));
  SHARDPROOF_ASSIGN_OR_RETURN(base.optimizer.kind, ParseOptimizerKind(raw.optimizer));
  base.data = raw.data;
  base.clip_grad_norm = raw.clip_grad_norm;
  base.sharding.world_size = WorldSize{world_size};
  base.sharding.bucket_cap_bytes = std::llround(raw.bucket_cap_mb * (1 << 20));
  SHARDPROOF_ASSIGN_OR_RETURN(base.model, ImportModel(raw.model));
  std::vector<RunDescription> runs;
  for (const ModeRow& row : rows) {
    runs.push_back(base);
    ApplyModeRow(row, layout, runs.back().sharding);
    // What the flags describe is the same in every row, and looking at each of a model's
    // tensors again takes longer than planning some modes.
    if (runs.size() == 1) SHARDPROOF_RETURN_IF_ERROR(Validate(runs.back()));
  }
  return runs;
}

}  // namespace

void DeclareRunFlags(const ModeFlag& mode_flag, RunFlags& raw, Flags& flags) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  raw.mode_flag = mode_flag;
  raw.modes = mode_flag.default_text;
  flags.String("model", &raw.model,
               "mlp:8x2048, mlp:33,65,17:bias, probe:10x3,7, probe:FILE, a config.json or a "
               ".safetensors file");
  flags.Int("world_size", &raw.world_size, 1, 65536, "ranks");
  flags.String(mode_flag.name, &raw.modes, mode_flag.help);
  flags.String("layout", &raw.layout,
               "flat, flat_aligned, rows or owner, for the modes that cut tensors");
  flags.Int("steps", &raw.data.steps, 1, 1000000, "optimizer steps");
  flags.Int("micro_batch_size", &raw.data.micro_batch_size, 1, kMost, "samples of a rank");
  flags.Int("num_micro_batches", &raw.data.num_micro_batches, 1, 1024, "micro-batches of a step");
  flags.String("grad_sync", &raw.grad_sync, "micro-batches that reduce: every or last");
  flags.Double("bucket_cap_mb", &raw.bucket_cap_mb, 1.0 / (1 << 20), 1 << 30, "bucket cap in MiB");
  flags.String("optimizer", &raw.optimizer, "adamw or sgd");
  flags.Double("clip_grad_norm", &raw.clip_grad_norm, 0, 1e30,
               "norm that gradients are clipped to; 0: no clipping");
  flags.Unsigned("seed", &raw.data.seed, "fixes data, initial values and schedule");
  flags.String("run", &raw.run,
               "one whole run, as a replay line or a .json file prints it; instead of the flags "
               "that describe a run");
}

absl::StatusOr<std::vector<RunDescription>> MakeRuns(const RunFlags& raw, const Flags& flags,
                                                     const LaunchEnvironment& launch) {
  if (raw.run.empty()) {
    if (launch.launcher == Launcher::kNone) {
      return RunsOfModes(raw, static_cast<int32_t>(raw.world_size));
    }
    if (flags.given("world_size")) {
      SHARDPROOF_RETURN_IF_ERROR(
          CheckLaunched(absl::StrCat("--world_size=", raw.world_size), raw.world_size, launch));
    }
    return RunsOfModes(raw, launch.world_size.value);
  }
  SHARDPROOF_RETURN_IF_ERROR(NothingBesidesRun(raw, flags));
  SHARDPROOF_ASSIGN_OR_RETURN(RunDescription run, WholeRun(raw.run));
  SHARDPROOF_RETURN_IF_ERROR(CheckLaunched("--run", run.sharding.world_size.value, launch));
  return std::vector<RunDescription>{std::move(run)};
}

}  // namespace shardproof
