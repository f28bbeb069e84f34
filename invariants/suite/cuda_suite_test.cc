// The suite's targets on this machine's GPUs: a thread a rank or, under mpirun and torchrun, a
// process a rank with the GPU of its local rank.
#include <cstdint>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/nccl/requirements.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/cuda_case.h"
#include "invariants/suite/launched_suite.h"
#include "invariants/suite/required_gpus.h"

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

DeviceEngineFactory DeviceEngines(RanksHere& ranks) {
  return CudaEngineFactory(
      {.timeout = absl::Seconds(60), .job = ranks.job(), .device = ranks.local_rank()});
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  // A case here costs many times what it costs on CPUs, and layouts are the plan's business.
  const shardproof::SuiteProgram program = {.name = "cuda_suite_test",
                                            .ready = shardproof::HasGpus,
                                            .random_cases = 4,
                                            .one_layout_a_case = true};
  return shardproof::RunLaunchedSuite(argc, argv, program, shardproof::DeviceEngines);
}
