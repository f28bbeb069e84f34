// Trainers for tests: a rank that is two functions.
#ifndef INVARIANTS_SUITE_SCRIPTED_TRAINER_H_
#define INVARIANTS_SUITE_SCRIPTED_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "invariants/suite/sharded_trainer.h"

namespace shardproof {

class ScriptedRank : public RankTrainer {
 public:
  // `step` counts from 0. Either may be empty, and then does nothing.
  using StepFn = std::function<absl::Status(int64_t step)>;
  using ObserveFn = std::function<absl::Status(RankReport&)>;
  ScriptedRank(StepFn step, ObserveFn observe)
      : step_(std::move(step)), observe_(std::move(observe)) {}
  absl::Status Step() override { return step_ ? step_(next_++) : absl::OkStatus(); }
  absl::Status Observe(RankReport& report) override {
    return observe_ ? observe_(report) : absl::OkStatus();
  }

 private:
  const StepFn step_;
  const ObserveFn observe_;
  int64_t next_ = 0;
};

using Made = absl::StatusOr<std::unique_ptr<RankTrainer>>;

inline Made Scripted(ScriptedRank::StepFn step, ScriptedRank::ObserveFn observe = nullptr) {
  return std::make_unique<ScriptedRank>(std::move(step), std::move(observe));
}

inline TrainerUnderTest ScriptedTrainer(std::function<Made(const TrainerInputs&)> make) {
  return {.name = "scripted", .arithmetic = Arithmetic::kRankOrder, .make = std::move(make)};
}

// All ranks meet, and nobody is told of it.
inline absl::Status Meet(const TrainerInputs& inputs) {
  const absl::StatusOr<CollectiveHandle> handle = inputs.communicator.Start({});
  return handle.ok() ? inputs.communicator.Wait(*handle, absl::Seconds(1)) : handle.status();
}

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_SCRIPTED_TRAINER_H_
