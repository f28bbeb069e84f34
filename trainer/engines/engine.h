// Engine: executes the plans of all ranks, step by step, and shows what happened.
#ifndef TRAINER_ENGINES_ENGINE_H_
#define TRAINER_ENGINES_ENGINE_H_

#include "absl/status/statusor.h"
#include "invariants/observation/observation.h"

namespace shardproof {

class Engine {
 public:
  virtual ~Engine() = default;
  // Runs the next step on every rank. The observation is valid until the next call. An error
  // names the rank and the operation; the engine must not be used after one.
  virtual absl::StatusOr<const StepObservation*> Step() = 0;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_ENGINE_H_
