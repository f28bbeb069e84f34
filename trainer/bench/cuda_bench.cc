#include "trainer/bench/cuda_bench.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/device_world.h"
#include "collectives/nccl/kernel_witness.h"
#include "collectives/nccl/requirements.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/bench/cuda_bandwidth.h"
#include "trainer/bench/cuda_floor.h"
#include "trainer/bench/exposed.h"
#include "trainer/bench/step_traffic.h"
#include "trainer/engines/cuda/cuda_engine.h"
#include "trainer/engines/cuda/cuda_status.h"
#include "trainer/engines/cuda/cuda_world.h"
#include "trainer/plan/planner.h"

namespace shardproof {
namespace {

constexpr int64_t kCopyBytes = int64_t{512} << 20;  // far more than any cache holds
constexpr int32_t kBandwidthSamples = 20;

absl::StatusOr<std::string> CublasVersion() {
  int parts[3] = {};
  SHARDPROOF_CUBLAS_OK(cublasGetProperty(MAJOR_VERSION, &parts[0]));
  SHARDPROOF_CUBLAS_OK(cublasGetProperty(MINOR_VERSION, &parts[1]));
  SHARDPROOF_CUBLAS_OK(cublasGetProperty(PATCH_LEVEL, &parts[2]));
  return absl::StrCat(parts[0], ".", parts[1], ".", parts[2]);
}

// device -> local ranks on it.
std::map<int, int32_t> RanksOfDevices(const DeviceWorld& world) {
  std::map<int, int32_t> ranks;
  for (Rank rank : world.local_ranks()) ++ranks[world.device(rank)];
  return ranks;
}

BenchMemory MemoryOf(const DeviceMemoryFigures& figures) {
  return {.rank = figures.rank.value,
          .arena_steady = figures.arena_steady,
          .arena_total = figures.arena_total,
          .plan_peak = figures.plan_peak,
          .workspace = figures.workspace,
          .driver_steady = figures.driver_steady,
          .driver_peak = figures.driver_peak};
}

std::vector<KernelSpan> SpansOf(const std::vector<KernelRecord>& kernels) {
  std::vector<KernelSpan> spans;
  for (const KernelRecord& kernel : kernels) {
    spans.push_back({kernel.device, CollectiveKindOfKernel(kernel.name).has_value(),
                     static_cast<int64_t>(kernel.start_ns), static_cast<int64_t>(kernel.end_ns)});
  }
  return spans;
}

class CudaSubject : public BenchSubject {
 public:
  CudaSubject(const RunDescription& run, DeviceWorld& world, const CudaBenchOptions& options)
      : run_(run), world_(world), options_(options) {}

  // The engine first: it watches what the driver has while it allocates.
  absl::Status Prepare() {
    EngineParts parts = PlannedParts(run_);
    const StepPlan plan = PlanStep(run_, parts.placement, Rank{0}, /*step=*/1);
    const std::vector<Gemm> gemms = StepGemms(run_, parts.placement, plan);
    collective_kernels_ = CollectiveKernels(plan);
    SHARDPROOF_ASSIGN_OR_RETURN(
        engine_,
        MakeCudaEngine(run_, std::move(parts), world_,
                       {.tf32 = options_.tf32, .poison = false, .timeout = options_.timeout}));
    if (gemms.empty()) return absl::OkStatus();
    for (const auto& [device, ranks] : RanksOfDevices(world_)) {
      SHARDPROOF_ASSIGN_OR_RETURN(
          floors_.emplace_back(),
          MakeCudaFloor(run_, gemms, {.device = device, .repeats = ranks, .tf32 = options_.tf32}));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> Step() override { return engine_->TimedStep(); }

  absl::StatusOr<std::vector<double>> Floor() override {
    for (const std::unique_ptr<CudaFloor>& floor : floors_) {
      SHARDPROOF_RETURN_IF_ERROR(floor->Launch());
    }
    std::vector<double> ms;
    for (const std::unique_ptr<CudaFloor>& floor : floors_) {
      SHARDPROOF_ASSIGN_OR_RETURN(ms.emplace_back(), floor->Finish());
    }
    return ms;
  }

  absl::StatusOr<ExposedTimes> ExposedStep() override {
    if (world_.size().value == 1) {
      SHARDPROOF_RETURN_IF_ERROR(engine_->TimedStep().status());
      return ExposedTimes{.ms = {0}};
    }
    if (options_.shared_gpu) {
      return ExposedTimes{.missing = "collectives of the cuda_shared engine are not NCCL's"};
    }
    return WatchedStep();
  }

  std::vector<BenchMemory> memory() const override {
    std::vector<BenchMemory> ranks;
    for (const DeviceMemoryFigures& figures : engine_->memory()) ranks.push_back(MemoryOf(figures));
    return ranks;
  }

 private:
  // The first step under a witness still loads what CUPTI needs; the second one counts.
  absl::StatusOr<ExposedTimes> WatchedStep() {
    SHARDPROOF_ASSIGN_OR_RETURN(const std::unique_ptr<KernelWitness> witness,
                                KernelWitness::Start());
    SHARDPROOF_RETURN_IF_ERROR(engine_->TimedStep().status());
    SHARDPROOF_RETURN_IF_ERROR(witness->Collect().status());
    SHARDPROOF_RETURN_IF_ERROR(engine_->TimedStep().status());
    SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<KernelRecord> kernels, witness->Collect());
    std::vector<int32_t> devices;
    for (const auto& [device, ranks] : RanksOfDevices(world_)) devices.push_back(device);
    return ExposedOfStep(SpansOf(kernels), devices, collective_kernels_);
  }

  const RunDescription& run_;
  DeviceWorld& world_;
  const CudaBenchOptions options_;
  std::unique_ptr<CudaEngine> engine_;
  std::vector<std::unique_ptr<CudaFloor>> floors_;  // by device
  int64_t collective_kernels_ = 0;                  // of each rank: all issue the same
};

class CudaBenchMachine : public BenchMachine {
 public:
  CudaBenchMachine(std::unique_ptr<DeviceWorld> world, const CudaBenchOptions& options)
      : owned_world_(std::move(world)), world_(*owned_world_), options_(options) {}

  absl::StatusOr<BenchMachineFacts> Facts() override {
    cudaDeviceProp properties = {};
    int runtime = 0;
    int driver = 0;
    int nccl = 0;
    SHARDPROOF_CUDA_OK(
        cudaGetDeviceProperties(&properties, world_.device(world_.local_ranks().front())));
    SHARDPROOF_CUDA_OK(cudaRuntimeGetVersion(&runtime));
    SHARDPROOF_CUDA_OK(cudaDriverGetVersion(&driver));
    if (const ncclResult_t result = ncclGetVersion(&nccl); result != ncclSuccess) {
      return absl::InternalError(absl::StrCat("ncclGetVersion: ", ncclGetErrorString(result)));
    }
    BenchMachineFacts facts;
    facts.device = properties.name;
    facts.cuda_runtime = CudaVersionText(runtime);
    facts.cuda_driver = CudaVersionText(driver);
    SHARDPROOF_ASSIGN_OR_RETURN(facts.cublas, CublasVersion());
    facts.nccl = NcclVersionText(nccl);
    return facts;
  }

  // One device after the other: they share nothing that a copy within one of them uses.
  absl::StatusOr<std::vector<double>> CopyBandwidth() override {
    std::vector<double> slowest;
    for (const auto& [device, ranks] : RanksOfDevices(world_)) {
      SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<double> gb_per_s,
                                  CopyBandwidthOf(device, kCopyBytes, kBandwidthSamples));
      if (slowest.empty()) slowest = gb_per_s;
      for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::min(slowest[i], gb_per_s[i]);
    }
    return slowest;
  }

  absl::StatusOr<std::vector<double>> BusBandwidth(const TypicalCollective& call) override {
    return BusBandwidthOf(call, world_, kBandwidthSamples, options_.timeout);
  }

  absl::StatusOr<std::unique_ptr<BenchSubject>> Prepare(const RunDescription& run) override {
    auto subject = std::make_unique<CudaSubject>(run, world_, options_);
    SHARDPROOF_RETURN_IF_ERROR(subject->Prepare());
    return std::unique_ptr<BenchSubject>(std::move(subject));
  }

 private:
  const std::unique_ptr<DeviceWorld> owned_world_;
  DeviceWorld& world_;
  const CudaBenchOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BenchMachine>> MakeCudaBenchMachine(
    const CudaBenchOptions& options) {
  SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<DeviceWorld> world,
                              MakeCudaWorld({.size = options.world_size,
                                             .shared_gpu = options.shared_gpu,
                                             .job = options.job,
                                             .device = options.device}));
  return std::make_unique<CudaBenchMachine>(std::move(world), options);
}

}  // namespace shardproof
