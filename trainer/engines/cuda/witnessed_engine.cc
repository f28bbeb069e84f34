#include "trainer/engines/cuda/witnessed_engine.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

class WitnessedEngine : public Engine {
 public:
  WitnessedEngine(std::unique_ptr<CudaEngine> engine, const DeviceWorld& world,
                  std::shared_ptr<KernelWitness> witness)
      : engine_(std::move(engine)), world_(world), witness_(std::move(witness)) {}

  absl::StatusOr<const StepObservation*> Step() override {
    SHARDPROOF_RETURN_IF_ERROR(witness_->Collect().status());
    SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const step, engine_->Step());
    SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<KernelRecord> kernels, witness_->Collect());
    observation_ = *step;
    const std::map<int32_t, KernelCounts> counts = CountCollectiveKernels(kernels);
    for (const DeviceMemoryFigures& memory : engine_->memory()) {
      observation_.devices.push_back(WitnessOf(memory, counts));
    }
    return &observation_;
  }

 private:
  bool IsAloneOn(int device) const {
    const std::vector<Rank> ranks = world_.local_ranks();
    return std::count_if(ranks.begin(), ranks.end(),
                         [&](Rank rank) { return world_.device(rank) == device; }) == 1;
  }

  DeviceWitness WitnessOf(const DeviceMemoryFigures& memory,
                          const std::map<int32_t, KernelCounts>& counts) const {
    DeviceWitness witness;
    witness.rank = memory.rank.value;
    const int device = world_.device(memory.rank);
    if (!IsAloneOn(device)) return witness;
    const auto found = counts.find(device);
    const KernelCounts kernels = found == counts.end() ? KernelCounts{} : found->second;
    witness.collective_kernels.assign(kernels.counts.begin(), kernels.counts.end());
    witness.steady_bytes = memory.driver_steady;
    witness.peak_bytes = memory.driver_peak;
    return witness;
  }

  const std::unique_ptr<CudaEngine> engine_;
  const DeviceWorld& world_;
  const std::shared_ptr<KernelWitness> witness_;
  StepObservation observation_;
};

}  // namespace

std::unique_ptr<Engine> MakeWitnessedEngine(std::unique_ptr<CudaEngine> engine,
                                            const DeviceWorld& world,
                                            std::shared_ptr<KernelWitness> witness) {
  return std::make_unique<WitnessedEngine>(std::move(engine), world, std::move(witness));
}

}  // namespace shardproof
