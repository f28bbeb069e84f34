#include "trainer/train_request.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/run_flags.h"

namespace shardproof {
namespace {

absl::StatusOr<std::vector<RunDescription>> ModesOf(const RunFlags& raw, const Flags& flags,
                                                    const LaunchEnvironment& launch) {
  if (raw.run.empty() && raw.modes.empty()) {
    return absl::InvalidArgumentError(
        "--mode is missing; accepted: replicated, zero1_broadcast, zero1_allgather, zero2, "
        "shard_grad_op, full_shard/backward_pre, full_shard/backward_post, full_shard/none");
  }
  return MakeRuns(raw, flags, launch);
}

absl::StatusOr<RunDescription> OneMode(const RunFlags& raw, const Flags& flags,
                                       const LaunchEnvironment& launch) {
  SHARDPROOF_ASSIGN_OR_RETURN(std::vector<RunDescription> runs, ModesOf(raw, flags, launch));
  if (runs.size() == 1) return std::move(runs[0]);
  const std::string rows =
      absl::StrJoin(runs, ", ", [](std::string* text, const RunDescription& run) {
        absl::StrAppend(text, ModeRowName(run.sharding));
      });
  return absl::InvalidArgumentError(
      absl::StrCat("--mode=", raw.modes, " names several rows; accepted is one of ", rows));
}

}  // namespace

absl::StatusOr<TrainRequest> ParseTrainRequest(int argc, const char* const* argv,
                                               const LaunchEnvironment& launch) {
  RunFlags run_flags;
  EngineFlags engine;
  BenchFlags bench;
  std::string format = "table";
  TrainRequest request;
  Flags flags(
      "Trains a model in one sharding mode and prints losses, state, collectives and memory. It "
      "judges nothing: that is //invariants:audit.\nExit 0: trained; 2: bad input, or a run this "
      "trainer declines.");
  DeclareRunFlags(
      {.name = "mode",
       .help = "one mode row: zero2, full_shard/backward_pre, ...; with --bench several, "
               "or all"},
      run_flags, flags);
  DeclareEngineFlags(engine, flags);
  flags.String("format", &format, "table or json");
  flags.String("observe", &request.observe,
               "write what happened to this file, for //invariants:check to judge");
  DeclareBenchFlags(bench, flags);
  SHARDPROOF_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    request.help = flags.Help();
    return request;
  }
  SHARDPROOF_ASSIGN_OR_RETURN(request.engine, MakeEngineRequest(engine, launch));
  if (format != "table" && format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format=", format, ": accepted is table or json"));
  }
  request.format = format == "json" ? TrainFormat::kJson : TrainFormat::kTable;
  SHARDPROOF_RETURN_IF_ERROR(CheckBenchFlags(bench, request.engine.engine, flags));
  if (!bench.bench) {
    SHARDPROOF_ASSIGN_OR_RETURN(request.run, OneMode(run_flags, flags, launch));
    return request;
  }
  request.bench = BenchRequest{.engine = request.engine,
                               .bench_steps = bench.bench_steps,
                               .warmup_steps = bench.warmup_steps,
                               .table = flags.given("format") && format == "table"};
  SHARDPROOF_ASSIGN_OR_RETURN(request.bench->runs, ModesOf(run_flags, flags, launch));
  request.run = request.bench->runs.front();
  return request;
}

}  // namespace shardproof
