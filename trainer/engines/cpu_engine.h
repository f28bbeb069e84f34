// The cpu engine: executes the plans of N ranks on floats, in one process and one thread.
//
// Ranks and streams advance one operation at a time, in an order drawn from the run's seed
// among those whose waits have ended; a collective ends when every member has reached it.
// Equal runs give equal bits. Communication goes through collectives/simulated, so sums over
// ranks are taken in rank order.
//
// Memory is poisoned: what a plan allocates, frees or calls padding holds quiet NaNs whose
// payload names the reason and the buffer, 0x7fc00000 | kind << 16 | (buffer & 0xffff), kind
// 1 padding of persistent state, 2 allocated and never written, 3 freed. Each buffer has
// memory of its own for the whole run, so that a read of freed memory meets its poison.
//
// Parameter versions: every access of parameters shows how many updates its values carry, as far
// as they come from ranks of this process.
//
// Ranks elsewhere: given a World of several processes, the engine executes its local ranks alone
// and shows these alone, in ascending order. Where no local rank can go on while one is in a
// collective, it polls until one can; after World::patience() without any progress the error is
// that of the collective, which names the ranks that did not arrive.
#ifndef TRAINER_ENGINES_CPU_ENGINE_H_
#define TRAINER_ENGINES_CPU_ENGINE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "collectives/world.h"
#include "invariants/run_description/run_description.h"
#include "trainer/engines/engine.h"
#include "trainer/engines/engine_parts.h"

namespace shardproof {

class RankMemory;

// What the engine may take: limit_bytes less what others beside it (the oracle) will take.
struct MemoryBudget {
  int64_t limit_bytes = 0;
  int64_t others_bytes = 0;
};

// Executes `parts`, which PlannedParts made for `run`, or an edit of them. Unimplemented as
// CanPlan and MakeModelCompute. ResourceExhausted with the bytes that the run needs when they do
// not fit the budget or cannot be had. `run` must be valid and outlive the engine.
//
// Plans may be edited into anything: an operation outside its buffers is InvalidArgument that
// names rank and operation, one that can never run DeadlineExceeded.
//
// `world`: where the ranks meet, as large as the run's, and outlives the engine; null: all ranks
// are here. The budget is that of the local ranks.
absl::StatusOr<std::unique_ptr<Engine>> MakeCpuEngine(const RunDescription& run, EngineParts parts,
                                                      const MemoryBudget& budget,
                                                      World* world = nullptr);

// The same, for who asks a trainer for more than its steps (live_trainer.h).
class CpuExecutor : public Engine {
 public:
  // Executes one plan a rank, over the buffers of the others, with the data of a step. `trains`:
  // it updates parameters, which then carry one update more. The rest as Step.
  virtual absl::StatusOr<const StepObservation*> Execute(const PlanSource& plans, int64_t step,
                                                         bool trains) = 0;
  // What a rank holds, between plans. All ranks are here.
  virtual RankMemory& memory(Rank rank) = 0;
};
absl::StatusOr<std::unique_ptr<CpuExecutor>> MakeCpuExecutor(const RunDescription& run,
                                                             EngineParts parts,
                                                             const MemoryBudget& budget);

// The trainer as it is.
absl::StatusOr<std::unique_ptr<Engine>> MakeCpuEngine(const RunDescription& run,
                                                      const MemoryBudget& budget);

inline absl::StatusOr<std::unique_ptr<Engine>> MakeCpuEngine(const RunDescription& run,
                                                             int64_t limit_bytes) {
  return MakeCpuEngine(run, MemoryBudget{limit_bytes, 0});
}

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CPU_ENGINE_H_
