// Observations written by hand, for the tests of checks: a small model, a step of events that
// can be edited before it is shown, and a state whose values can be spoilt. No trainer here.
#ifndef INVARIANTS_CHECKS_HAND_MADE_H_
#define INVARIANTS_CHECKS_HAND_MADE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "invariants/checks/check.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// Two Linear layers, each a unit: layers.0 with weight [3, 2] (tensor 0) and bias [3] (1),
// layers.1 with weight [2, 3] (2) and bias [2] (3). AdamW, one micro-batch, layout flat.
RunDescription HandMadeRun(Mode mode, int32_t ranks);

struct ScriptedEvent {
  Event event = {};
  std::vector<Access> accesses = {};
  std::vector<int32_t> waits = {};
};

// The step of one rank, editable.
struct Script {
  Group ranks;
  std::vector<BufferInfo> buffers;
  std::vector<int32_t> live_before;
  std::vector<ScriptedEvent> events;
  RankEvents Show() const;
  // Makes an event do nothing, so that the others keep their numbers.
  void Drop(int32_t event);
};

// One correct step of full_shard on HandMadeRun. Buffers 0 and 1 are the parameter shards of
// the units, 2 and 3 their full parameters, 4 and 5 full gradients, 6 and 7 gradient shards,
// 8 optimizer state. Events:
//    0 G0  1 c0  2 R0  3 G1  4 c1  5 R1     forward
//    6 G1  7 c1  8 R1  9 S1 10 release      backward of layers.1
//   11 G0 12 c0 13 R0 14 S0 15 release      backward of layers.0
//   16 optimizer
// G, S and releases run on the communication stream.
Script FullShardScript(int32_t rank, int32_t ranks, int64_t step);

// One correct step of replicated. Buffer 0 is the parameters, 1 the gradient bucket. Events:
// 0 forward, 1 backward, 2 all-reduce, 3 optimizer.
Script ReplicatedScript(int32_t rank, int32_t ranks, int64_t step);

// The events of all ranks of a step.
StepObservation ShowScripts(const std::vector<Script>& scripts, int64_t step);

// Training of HandMadeRun whose observed state is the reference's until a test spoils it.
// Every class is shown whole on each rank or in shards of units as closed_forms says, with
// padding (poisoned) behind the shard; buffer = class * units + unit.
class HandMadeTraining {
 public:
  // How the reference gets from one step to the next.
  enum class Arithmetic : uint8_t {
    kAny,        // every element moves in every step, by some numbers
    kOptimizer,  // the run's optimizer in float32, with its groups, usage and magnitudes
  };
  explicit HandMadeTraining(const RunDescription& run, Arithmetic arithmetic = Arithmetic::kAny);
  // The next step; the first call makes step 0.
  void Advance();
  StepObservation& observed() { return observed_; }
  const ReferenceStep& reference() const { return reference_; }
  // To say what the reference clipped with, or to take something from it.
  ReferenceStep& mutable_reference() { return reference_; }
  StateSegment& Segment(int32_t rank, StateClass state, int32_t tensor);
  // The observed element; it must lie on the rank.
  float& Value(int32_t rank, StateClass state, int32_t tensor, int64_t element);
  // The elements of the reference.
  float& Reference(StateClass state, int32_t tensor, int64_t element);

 private:
  struct TensorValues {
    std::vector<float> previous, classes[4], magnitude;
    int64_t updates = 0;
  };
  void AdvanceReference();
  void AdvanceTensor(int32_t tensor);
  void UpdateTensor(int32_t tensor);
  void ShowRank(int32_t rank);
  void ShowUnit(int32_t rank, StateClass state, int32_t unit, RankState* shown, RankEvents* events);
  float* Store(const std::vector<float>& values);

  const RunDescription run_;
  const Arithmetic arithmetic_;
  int64_t step_ = -1;
  std::vector<TensorValues> values_;
  std::vector<std::unique_ptr<std::vector<float>>> storage_;
  StepObservation observed_;
  ReferenceStep reference_;
};

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_HAND_MADE_H_
