// What RunCase needs of the GPUs of this machine: the cuda engines and their worlds.
//
//   CaseOptions options = {.engine = EngineKind::kCuda};
//   options.make_device_engine = CudaEngineFactory({.timeout = absl::Seconds(120)});
//
// A build without CUDA and NCCL has the same function, whose engines are Unavailable.
#ifndef INVARIANTS_SUITE_CUDA_CASE_H_
#define INVARIANTS_SUITE_CUDA_CASE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/launch/job.h"
#include "invariants/suite/run_case.h"

namespace shardproof {

struct CudaCaseOptions {
  bool tf32 = false;  // products of the engine and of its oracle may round to TF32
  absl::Duration timeout = absl::Seconds(120);  // of connecting, and of a step
  // The processes of the ranks, one each; null: all ranks are in this one. Outlives the factory
  // and every engine.
  Job* job = nullptr;
  int32_t device = 0;  // with a job: the CUDA ordinal of this process's GPU
};

// Copies of the factory share its worlds: one for each engine and number of ranks is made when it
// is first asked for, and kept for later cases unless it failed. Engines may outlive the factory,
// one at a time: two of one world would mix their collectives.
//
// Engines of `cuda` show what CUPTI and the driver saw of the GPUs (witnessed_engine.h); where
// CUPTI cannot record, as under a profiler, they are Unavailable.
//
// Errors, before anything is done for the run's own sake, are those of CheckGpuRequirements
// (collectives/nccl/requirements.h): no GPU, too few, versions that do not fit. cuda_shared needs
// one GPU and all ranks in this process.
DeviceEngineFactory CudaEngineFactory(const CudaCaseOptions& options);

// How many GPUs of this machine the engines can use, at least one: as many ranks can a run of
// `cuda` have in one process. Where there is none, the error of CheckGpuRequirements; Unavailable
// in a build without CUDA and NCCL.
absl::StatusOr<int32_t> UsableGpus();

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_CUDA_CASE_H_
