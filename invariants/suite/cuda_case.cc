#include "invariants/suite/cuda_case.h"

#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "collectives/device_world.h"
#include "collectives/nccl/kernel_witness.h"
#include "collectives/nccl/requirements.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/cuda/cuda_engine.h"
#include "trainer/engines/cuda/cuda_model.h"
#include "trainer/engines/cuda/cuda_world.h"
#include "trainer/engines/cuda/witnessed_engine.h"

namespace shardproof {
namespace {

struct KeptWorld {
  std::unique_ptr<DeviceWorld> world;
  bool failed = false;
};

// An engine and the world that it uses, of which it tells when that has failed.
class EngineInWorld : public Engine {
 public:
  EngineInWorld(std::shared_ptr<KeptWorld> world, std::unique_ptr<Engine> engine)
      : world_(std::move(world)), engine_(std::move(engine)) {}

  absl::StatusOr<const StepObservation*> Step() override {
    absl::StatusOr<const StepObservation*> step = engine_->Step();
    if (!step.ok()) world_->failed = true;
    return step;
  }

 private:
  const std::shared_ptr<KeptWorld> world_;
  const std::unique_ptr<Engine> engine_;
};

class Factory {
 public:
  explicit Factory(const CudaCaseOptions& options) : options_(options) {}

  absl::StatusOr<CaseEngine> Make(const RunDescription& run, EngineKind kind,
                                  const EngineParts& parts, bool judges) {
    SHARDPROOF_ASSIGN_OR_RETURN(const std::shared_ptr<KeptWorld> kept,
                                WorldOf(kind, run.sharding.world_size));
    absl::StatusOr<std::unique_ptr<CudaEngine>> engine =
        MakeCudaEngine(run, parts, *kept->world,
                       {.tf32 = options_.tf32, .poison = true, .timeout = options_.timeout});
    if (!engine.ok()) {
      // A refusal has not touched the world.
      kept->failed = !absl::IsUnimplemented(engine.status());
      return engine.status();
    }
    CaseEngine made;
    SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<Engine> watched,
                                Watch(kind, *std::move(engine), *kept->world));
    made.engine = std::make_unique<EngineInWorld>(kept, std::move(watched));
    if (!judges) return made;
    const int device = kept->world->device(kept->world->local_ranks().front());
    SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<HostModelByCuda> compute,
                                MakeHostModelByCuda(run, device, {.tf32 = options_.tf32}));
    made.oracle_status = [model = compute.get()] { return model->status(); };
    made.oracle_compute = std::move(compute);
    return made;
  }

 private:
  // Ranks that share a GPU cannot be told apart by its kernels, and run none of NCCL's.
  absl::StatusOr<std::unique_ptr<Engine>> Watch(EngineKind kind, std::unique_ptr<CudaEngine> engine,
                                                const DeviceWorld& world) {
    if (kind == EngineKind::kCudaShared) return engine;
    if (witness_ == nullptr) {
      SHARDPROOF_ASSIGN_OR_RETURN(witness_, KernelWitness::Start());
    }
    return MakeWitnessedEngine(std::move(engine), world, witness_);
  }

  absl::StatusOr<std::shared_ptr<KeptWorld>> WorldOf(EngineKind kind, WorldSize size) {
    std::shared_ptr<KeptWorld>& kept = worlds_[{kind, size.value}];
    if (kept != nullptr && !kept->failed) return kept;
    kept = nullptr;
    SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<DeviceWorld> world,
                                MakeCudaWorld({.size = size,
                                               .shared_gpu = kind == EngineKind::kCudaShared,
                                               .job = options_.job,
                                               .device = options_.device}));
    kept = std::make_shared<KeptWorld>();
    kept->world = std::move(world);
    return kept;
  }

  const CudaCaseOptions options_;
  std::map<std::pair<EngineKind, int32_t>, std::shared_ptr<KeptWorld>> worlds_;
  std::shared_ptr<KernelWitness> witness_;  // of all engines: CUPTI has one a process
};

}  // namespace

DeviceEngineFactory CudaEngineFactory(const CudaCaseOptions& options) {
  const auto factory = std::make_shared<Factory>(options);
  return [factory](const RunDescription& run, EngineKind engine, const EngineParts& parts,
                   bool judges) { return factory->Make(run, engine, parts, judges); };
}

absl::StatusOr<int32_t> UsableGpus() {
  SHARDPROOF_RETURN_IF_ERROR(CheckGpuRequirements(1));
  int32_t gpus = 1;
  while (CheckGpuRequirements(gpus + 1).ok()) ++gpus;
  return gpus;
}

}  // namespace shardproof
