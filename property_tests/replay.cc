// //property_tests:replay: one case again, from its line or its file.
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/console.h"
#include "invariants/suite/cuda_case.h"
#include "property_tests/gpu_needs.h"
#include "property_tests/judge_case.h"
#include "property_tests/replay_file.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

struct ReplayRequest {
  std::string help;  // not empty: --help was given, print this
  RunDescription run;
  std::string found_by;  // of a file
  std::vector<EngineKind> engines;
};

absl::StatusOr<RunDescription> RunOf(const std::string& text) {
  return !text.empty() && text[0] == '{' ? ParseRunJson(text, ImportModel)
                                         : ParseRun(text, ImportModel);
}

absl::StatusOr<ReplayRequest> ParseRequest(int argc, char** argv) {
  std::string file;
  std::string run;
  std::string engine = "all";
  Flags flags(
      "Runs one case again and judges it.\n"
      "Exit 0: it passes on every engine asked for; 1: it fails on one; 2: bad input.");
  flags.String("file", &file, "a replay file");
  flags.String("run", &run, "the run as a replay line gives it: key=value;... or JSON");
  flags.String("engine", &engine,
               "cpu, provenance, accounting, all (these three, and the file's), cuda or "
               "cuda_shared");
  SHARDPROOF_RETURN_IF_ERROR(flags.Parse(argc, argv));
  ReplayRequest request;
  if (flags.help_asked()) {
    request.help = flags.Help();
    return request;
  }
  if (flags.given("file") == flags.given("run")) {
    return absl::InvalidArgumentError(
        "--file and --run are both missing, or both given; accepted: one of them");
  }
  SHARDPROOF_ASSIGN_OR_RETURN(request.engines, ParseEngines(engine, /*gpus=*/true));
  if (flags.given("file")) {
    SHARDPROOF_ASSIGN_OR_RETURN(ReplayFile replay, ReadReplayFile(file, ImportModel));
    request.run = std::move(replay.run);
    request.found_by = replay.found_by;
    if (engine == "all" && NeedsGpus(replay.engine)) request.engines.push_back(replay.engine);
    return request;
  }
  absl::StatusOr<RunDescription> parsed = RunOf(run);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--run: ", parsed.status().message()));
  }
  request.run = *std::move(parsed);
  return request;
}

// Exit code 2 only if nothing could be judged: one engine's refusal is told beside the others.
int Replay(const ReplayRequest& request, const DeviceEngineFactory& device_engines) {
  if (!request.found_by.empty()) std::cout << "found by: " << request.found_by << "\n";
  bool fails = false;
  bool judged = false;
  std::string refusal;
  for (const EngineKind engine : request.engines) {
    const EngineVerdict verdict =
        JudgeCase(request.run, {.engine = engine,
                                .memory_limit_bytes = AvailableMemoryBytes() / 10 * 9,
                                .make_device_engine = device_engines});
    std::cout << ModeRowName(request.run.sharding) << " on "
              << request.run.sharding.world_size.value << " ranks, engine " << Name(engine) << ": "
              << verdict.headline << "\n"
              << verdict.details;
    if (verdict.is_bad_input) refusal = verdict.headline;
    judged = judged || !verdict.is_bad_input;
    if (verdict.passes || verdict.is_bad_input) continue;
    fails = true;
    std::cout << ReplayLine(request.run, engine) << "\n";
  }
  std::cout << std::flush;
  if (!judged) return ReportBadInput("replay", absl::UnimplementedError(refusal));
  return fails ? 1 : 0;
}

int Main(int argc, char** argv) {
  const absl::Status directory = EnterCallersDirectory();
  if (!directory.ok()) return ReportBadInput("replay", directory);
  const absl::StatusOr<ReplayRequest> request = ParseRequest(argc, argv);
  if (!request.ok()) return ReportBadInput("replay", request.status());
  if (!request->help.empty()) {
    std::cout << request->help;
    return 0;
  }
  // CUDA is not even asked where no engine needs it.
  const absl::StatusOr<int32_t> gpus = AnyNeedsGpus(request->engines) ? UsableGpus() : 0;
  const absl::Status can_run =
      CheckGpusFor(request->engines, request->run.sharding.world_size.value, gpus);
  if (!can_run.ok()) return ReportBadInput("replay", can_run);
  return Replay(*request, CudaEngineFactory({.timeout = kGpuCaseTimeout}));
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
