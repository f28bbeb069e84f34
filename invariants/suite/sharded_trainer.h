// The interface behind which shardproof tests any sharded trainer.
//
// You write one RankTrainer, which is one rank of your trainer, and one function:
//
//   shardproof::TrainerUnderTest shardproof::MakeTrainerUnderTest() {
//     return {.name = "mine", .make = [](const TrainerInputs& inputs) { return Make(inputs); }};
//   }
//
// The suite makes N of them in one process, lets them train the same few steps as an unsharded
// trainer of its own (plain loops over whole tensors), and compares what you show after each
// step. README.md in this directory goes from an empty directory to a red test.
//
// WHAT IS GIVEN (TrainerInputs, one for each rank; everything outlives the RankTrainer)
//   run             what to train and how to shard it: invariants/run_description. Two words that
//                   FSDP does not have: a stage is one step of forward, a unit is what FSDP wraps.
//   initial_values  any range of any parameter, so that no rank needs all of them.
//   data            the arithmetic: loading a micro-batch, forward, loss and backward of one stage.
//                   The unsharded trainer calls the same code, so a difference is a difference
//                   in sharding, and is asked for bit by bit.
//   communicator    this rank's end of the group of all ranks (collectives/communicator.h).
//   log             takes what you want to tell of each operation. Optional, see below.
//
// ORDER OF ARITHMETIC. With Arithmetic::kRankOrder values must have the bits of this order:
// ranks add 0, 1, ..., N-1, which the given communicator does; micro-batches add before ranks
// when only the last one reduces (grad_sync last), after them otherwise; within one micro-batch
// the uses of a tied tensor add first, last stage first. Then one scale by float(1 / (N*K)), or
// before the reduction if scale_before_reduce. AdamW and SGD as in trainer/optimizer/optimizer.h.
// A trainer that adds in any other order declares kAnyOrder and is judged within bounds.
//
// WHAT YOU SHOW, and what stays not_observed without it (visibly, never as a pass)
//   RankReport::state    values: numeric_equivalence, liveness, padding, aggregate_factors
//   RankReport::updates  step counters: numeric_equivalence under AdamW
//   StepLog::Label       the purpose of each collective: collective_ledger. That nobody
//                        communicated needs no word of yours.
//   StepLog::Compute and Update      also: issue_order
//   StepLog::AddBuffer and accesses  also: unshard_lifecycle, peak_memory, ordering
// What a collective really was (kind, elements, dtype, group, root, whether you waited for it)
// is taken from the communicator, never from you. The rules that are compared with are written
// in invariants/closed_forms/closed_forms.h; each check's header says what it asks.
//
// ERRORS. Return an absl::Status; the verdict names rank, step and your words. Unimplemented from
// `make` means that you decline this run, with the reason in its message; every rank must
// decline alike. A rank that never arrives at a collective ends the run at once, with
// the names of those who wait and those who are missing. Do not throw.
//
// THREADS. The ranks run as ordinary blocking code, one at a time, and hand over only where
// one waits for a collective, in an order that the run's seed decides.
#ifndef INVARIANTS_SUITE_SHARDED_TRAINER_H_
#define INVARIANTS_SUITE_SHARDED_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "collectives/ledger.h"
#include "invariants/observation/observation.h"
#include "invariants/observation/padding_value.h"
#include "invariants/run_description/run_description.h"
#include "trainer/model/model_compute.h"

namespace shardproof {

// Whether sums over ranks and micro-batches are taken in the order above.
enum class Arithmetic : uint8_t { kRankOrder, kAnyOrder };

class InitialValues {
 public:
  // `run` outlives this.
  explicit InitialValues(const RunDescription& run) : run_(run) {}
  // Writes elements [range) of the tensor, row-major, to values[0 .. range.count).
  void Fill(int32_t tensor, ElementRange range, float* values) const {
    FillInitialValues(run_, tensor, range, values);
  }

 private:
  const RunDescription& run_;
};

// The arithmetic of the model's stages. A MicroBatch {step, rank, micro_batch} says which samples:
// every rank, step and micro-batch has others. Boundary b lies before stage b, boundary S is the
// output; each is micro_batch_size x Width(b) floats, row-major. Width is 0 in models without
// layers ("probe"), and pointers to such boundaries may be null.
class DataSource {
 public:
  // `compute` outlives this.
  explicit DataSource(const ModelCompute& compute) : compute_(compute) {}

  int64_t Width(int32_t boundary) const { return compute_.Width(boundary); }
  // Fills boundary 0.
  void LoadInput(const MicroBatch& micro_batch, float* input) const {
    compute_.LoadInput(micro_batch, input);
  }
  // parameters[i]: all elements of tensor stages[stage].tensors[i]. Writes all of `out`.
  void Forward(int32_t stage, absl::Span<const float* const> parameters, const float* in,
               float* out) const {
    compute_.Forward(stage, parameters, in, out);
  }
  // Returns the micro-batch's loss; writes its derivative by the output.
  double Loss(const MicroBatch& micro_batch, const float* output, float* output_gradient) const {
    return compute_.Loss(micro_batch, output, output_gradient);
  }
  // in, out: forward's. out_gradient may be overwritten. Writes (never adds to) in_gradient, null
  // when nobody needs it, and gradients[i], null for a frozen tensor.
  void Backward(const MicroBatch& micro_batch, int32_t stage,
                absl::Span<const float* const> parameters, const float* in, const float* out,
                float* out_gradient, float* in_gradient, absl::Span<float* const> gradients) const {
    compute_.Backward(micro_batch, stage, parameters, in, out, out_gradient, in_gradient,
                      gradients);
  }

 private:
  const ModelCompute& compute_;
};

// Where an operation belongs and what it used; what does not apply stays at its default.
struct Operation {
  Phase phase = Phase::kOther;
  int32_t micro_batch = -1;
  int32_t unit = -1;    // of a computation: the unit of its stages, in every mode
  int32_t bucket = -1;  // of gradients, in the modes with buckets
  int32_t tensor = -1;  // of a broadcast of one tensor
  int32_t stage = -1;   // first stage computed
  int32_t stage_count = 0;
  // Buffers used, by their ids. Reads of parameters carry the number of optimizer updates
  // that their values have had (Access::version).
  std::vector<Access> accesses = {};
};

// What one rank tells of its operations, in the order in which it does them. An operation is
// logged when it is done; a collective is labelled just before it is started. The log sees
// where collectives are started and waited for, and derives from it what is ordered after what.
class StepLog {
 public:
  explicit StepLog(Rank rank) : rank_(rank) {}
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // --- for the trainer ---

  // Declares a buffer, once in the whole run; the result is its id. `alive`: it exists already;
  // otherwise it does from an access kAllocate to an access kFree of it.
  int32_t AddBuffer(const BufferInfo& buffer, bool alive);

  // The next Start of the communicator is this. One Start uses up one label.
  void Label(Purpose purpose, Operation operation);
  // Forward or backward (see phase) of stages [stage, stage + stage_count).
  void Compute(Operation operation) { Append(EventKind::kCompute, std::move(operation)); }
  // An optimizer update of a unit, a bucket, or of everything that this rank owns.
  void Update(Operation operation) { Append(EventKind::kOptimizer, std::move(operation)); }
  // The unit's full parameters are given up.
  void Reshard(Operation operation) { Append(EventKind::kReshard, std::move(operation)); }
  // Arithmetic on this rank's buffers: scale, accumulate, copy.
  void Local(Operation operation) { Append(EventKind::kLocal, std::move(operation)); }
  // Frees buffers, nothing else.
  void Release(Operation operation) { Append(EventKind::kRelease, std::move(operation)); }

  // --- for the suite ---

  void BeginStep();
  // The rank started `call`; returns the event's index.
  int32_t CollectiveStarted(const LedgerEntry& call);
  // The rank saw the end of the collective at this event.
  void CollectiveDone(int32_t event);
  // Since BeginStep. Valid until the next.
  const RankEvents& events() const { return events_; }
  // Whether the trainer told anything in this step: a label or an operation.
  bool told() const { return told_; }
  // A label that no Start followed.
  bool label_left() const { return labels_lost_ || label_.has_value(); }

 private:
  struct PendingLabel {
    Purpose purpose;
    Operation operation;
  };

  void Append(EventKind kind, Operation operation);
  int32_t AddEvent(Event event, const Operation& operation);
  void AddAccesses(const Operation& operation, Event& event);
  void AddWaits(Event& event);

  const Rank rank_;
  RankEvents events_;
  std::vector<bool> alive_;  // by buffer
  std::optional<PendingLabel> label_;
  bool labels_lost_ = false;
  bool told_ = false;
  int32_t last_local_ = -1;    // event
  std::vector<int32_t> done_;  // collectives that ended and no operation waited for yet
};

// A run of elements that the rank holds when the step is over; tensor -1: padding of a buffer.
struct ShownRange {
  StateClass state = StateClass::kParameter;
  int32_t tensor = -1;
  ElementRange range;              // within the tensor; padding: within the buffer
  absl::Span<const float> values;  // range.count of them, or empty: not shown
  int32_t buffer = -1;             // an id of StepLog; -1: not told
  int64_t buffer_offset = 0;       // where the run lies in the buffer
};

// What one rank holds between two steps. Empty members are not observed.
//
// Gradients are those that the optimizer used: keep them until the next step begins. SGD's
// momentum is exp_avg.
//
// Padding. Fill every float of padding with PaddingValue(buffer) (observation/padding_value.h)
// when the run begins, and whenever you make a buffer later; then leave it alone. `buffer` is the
// id that AddBuffer gave, the one in ShownRange::buffer; a trainer that tells no buffers (-1
// there) passes any number, such as -1. After every step padding of parameters and moments is
// asked for just these bits, a NaN: zeros would hide that it took part in a sum, and a NaN that
// arithmetic made shows that it did. What an all-gather brings is another rank's padding, so let
// all ranks add their buffers in the same order. Reduced gradients are sums, and any NaN will do
// in their padding: reduce over padding that was filled so.
struct RankReport {
  std::vector<ShownRange> state = {};
  std::vector<TensorStep> updates = {};  // of trainable tensors with state on this rank
  std::optional<StateBytes> bytes = {};  // left out: those of `state` and `updates`
  std::optional<double> loss = {};       // mean over the rank's micro-batches of the step
  std::optional<ClipObservation> clip = {};
};

// One rank.
class RankTrainer {
 public:
  virtual ~RankTrainer() = default;

  // Trains one step. Collectives that it starts are waited for before it returns.
  virtual absl::Status Step() = 0;

  // Shows the state after the step; called when every rank has returned from Step. Pointers stay
  // valid until the next Step.
  virtual absl::Status Observe(RankReport& report) = 0;
};

struct TrainerInputs {
  const RunDescription& run;
  Rank rank;
  const InitialValues& initial_values;
  const DataSource& data;
  Communicator& communicator;
  StepLog& log;
};

struct TrainerUnderTest {
  std::string name;
  Arithmetic arithmetic = Arithmetic::kRankOrder;
  // Called once for each rank and run; may communicate.
  std::function<absl::StatusOr<std::unique_ptr<RankTrainer>>(const TrainerInputs& inputs)> make;
};

// Your trainer's library defines this; `sharding_suite` links it with the suite's programs.
TrainerUnderTest MakeTrainerUnderTest();

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_SHARDED_TRAINER_H_
