// The suite's targets on this machine's GPUs: a thread a rank or, under mpirun and torchrun, a
// process a rank with the GPU of its local rank.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/nccl/requirements.h"
#include "collectives/required_gpus.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/cuda_case.h"
#include "invariants/suite/engine_flags.h"
#include "invariants/suite/launched_suite.h"

namespace shardproof {
namespace {

// The target says how many GPUs it is for. A launcher has its own count, and each process needs
// one.
absl::Status HasGpus() {
  SHARDPROOF_ASSIGN_OR_RETURN(const LaunchEnvironment environment,
                              ReadLaunchEnvironment(std::getenv));
  if (environment.launcher != Launcher::kNone) {
    return CheckRequirementsOfGpu(environment.local_rank);
  }
  SHARDPROOF_ASSIGN_OR_RETURN(const int32_t gpus, RequiredGpus(std::getenv("SHARDPROOF_GPUS")));
  return CheckGpuRequirements(gpus);
}

// What cases that are fit for CPUs do not reach: products that go to cuBLAS (UsesCublas), with its
// operands where it wants them and elsewhere, and messages of more than one chunk of NCCL's.
std::vector<std::string> CasesForGpus() {
  return {
      // A bucket a layer, micro-batches.
      "model=mlp:4x256;micro_batch_size=16;num_micro_batches=2;bucket_cap_bytes=300000",
      // 2.25 MiB a layer, 6.75 MiB in one bucket.
      "model=mlp:3x768;micro_batch_size=32",
      // The last weight lies behind an odd number of floats.
      "model=mlp:256,255,256,256:bias;units=0-2;micro_batch_size=16",
  };
}

DeviceEngineFactory DeviceEngines(RanksHere& ranks, absl::Duration timeout) {
  return CudaEngineFactory(
      {.timeout = CollectiveTimeout(timeout), .job = ranks.job(), .device = ranks.local_rank()});
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  // A case here costs many times what it costs on CPUs, and layouts are the plan's business.
  const shardproof::SuiteProgram program = {.name = "cuda_suite_test",
                                            .ready = shardproof::HasGpus,
                                            .random_cases = 4,
                                            .more_fixed_cases = shardproof::CasesForGpus(),
                                            .one_layout_a_case = true};
  return shardproof::RunLaunchedSuite(argc, argv, program, shardproof::DeviceEngines);
}
