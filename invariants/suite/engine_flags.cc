#include "invariants/suite/engine_flags.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

// Ranks of the cpu engine meet through MPI, which torchrun does not start; those of the others
// that do not use NCCL are all in one process.
absl::Status CheckLaunched(EngineKind engine, Launcher launcher) {
  if (launcher == Launcher::kNone || engine == EngineKind::kCuda) return absl::OkStatus();
  if (engine == EngineKind::kCpu && launcher == Launcher::kMpirun) return absl::OkStatus();
  if (engine == EngineKind::kCpu) {
    return absl::InvalidArgumentError(
        "--engine=cpu under torchrun: ranks on CPUs meet through MPI, which torchrun does not "
        "start; accepted are --engine=cuda, and mpirun in place of torchrun");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--engine=", Name(engine), " under ", Name(launcher),
                   ": this engine has all ranks in one process; accepted are --engine=cuda, ",
                   launcher == Launcher::kMpirun ? "--engine=cpu, " : "", "and no launcher"));
}

}  // namespace

absl::Duration CollectiveTimeout(absl::Duration timeout) { return timeout * 0.75; }

void DeclareEngineFlags(EngineFlags& raw, Flags& flags) {
  flags.String("engine", &raw.engine,
               "cpu, accounting (no values, any size), provenance (where every value came from), "
               "cuda (a GPU a rank) or cuda_shared (all ranks on one GPU)");
  flags.Bool("tf32", &raw.tf32, "matrix products on GPUs may round their inputs to TF32");
  flags.Int("timeout_s", &raw.timeout_s, 1, 86400,
            "seconds that a rank waits for others, and for rank 0 to judge a step");
}

absl::StatusOr<EngineRequest> MakeEngineRequest(const EngineFlags& raw,
                                                const LaunchEnvironment& launch) {
  EngineRequest request;
  SHARDPROOF_ASSIGN_OR_RETURN(request.engine, ParseEngineKind(raw.engine));
  SHARDPROOF_RETURN_IF_ERROR(CheckLaunched(request.engine, launch.launcher));
  if (raw.tf32 && !NeedsGpus(request.engine)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tf32 with --engine=", raw.engine,
                     ": only GPUs have it; accepted with --engine=cuda and --engine=cuda_shared"));
  }
  request.tf32 = raw.tf32;
  request.timeout = absl::Seconds(raw.timeout_s);
  request.gpu_collective_timeout = CollectiveTimeout(request.timeout);
  return request;
}

}  // namespace shardproof
