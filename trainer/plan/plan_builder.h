// PlanBuilder: what planners share. It declares the buffers of a rank, issues operations
// and derives their waits from what they access.
//
// Waits: an operation waits for the last conflicting access of each of its buffers on the
// other stream, and an allocation for every free issued before it, since freed memory may
// be reused only after an ordering wait. Waits that an earlier wait of the stream already
// covers are left out. So a planner that states what an operation touches cannot forget to
// order it; what overlaps is decided by the issue order alone.
#ifndef TRAINER_PLAN_PLAN_BUILDER_H_
#define TRAINER_PLAN_PLAN_BUILDER_H_

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

// Consecutive stages of one unit, computed by one operation.
struct ComputeRun {
  int32_t unit = -1;
  int32_t stage = 0;
  int32_t stage_count = 0;
  // The units whose tensors it uses: its own, then those of tied tensors, ascending.
  std::vector<int32_t> needs = {};
};

class PlanBuilder {
 public:
  // Declares parameters, reduced gradients, moments and scalars of every set and the
  // activations. `gradients_live`: reduced gradients of an earlier step are.
  PlanBuilder(const RunDescription& run, const Placement& placement, Rank rank, int64_t step,
              bool gradients_live);

  const RunDescription& run() const { return run_; }
  const Placement& placement() const { return placement_; }
  const TensorSet& set(int32_t index) const { return placement_.sets[index]; }
  const SetHome& home(int32_t set) const { return plan_.homes[set]; }
  const std::vector<ComputeRun>& runs() const { return runs_; }
  // The first run that backward reaches: the one with the first trainable tensor.
  int32_t first_backward_run() const { return first_backward_run_; }
  Rank rank() const { return plan_.rank; }

  int32_t AddBuffer(const BufferSpec& spec);
  bool live(int32_t buffer) const { return buffers_[buffer].live; }

  // --- operations, in issue order ---

  // An earlier plan left this buffer allocated.
  void AssumeLive(int32_t buffer);
  // Frees what the step before left of reduced gradients.
  void ReleaseGradients();
  // The set's parameters into `full`, which is allocated.
  void Unshard(int32_t set, int32_t full, Phase phase, int32_t micro_batch);
  void Reshard(int32_t set, int32_t full, Phase phase, int32_t micro_batch);
  // `parameter_buffers`: by set, what computation reads.
  void Forward(const ComputeRun& run, int32_t micro_batch,
               const std::vector<int32_t>& parameter_buffers);
  // `gradient_buffers`: by set, what computation writes; allocated where not live.
  // `accumulate`: add to the micro-batches before.
  void Backward(const ComputeRun& run, int32_t micro_batch,
                const std::vector<int32_t>& parameter_buffers,
                const std::vector<int32_t>& gradient_buffers, bool accumulate);
  // Sum over ranks of `full`; to `reduced`, allocated where not live, unless it is `full`.
  void AllReduce(int32_t set, int32_t full, int32_t micro_batch);
  void ReduceScatter(int32_t set, int32_t full, int32_t reduced, int32_t micro_batch);
  void Accumulate(int32_t set, int32_t from, int32_t to, int32_t micro_batch);
  void Scale(int32_t set, int32_t buffer, StreamId stream, int32_t micro_batch);
  // With clipping: the norm of all reduced gradients, the coefficient, and every gradient times
  // it. `sharded`: a rank has the squares of its own shards, so the ranks add them up. Nothing
  // without clipping or gradients.
  void Clip(bool sharded);
  // One operation for all of `sets`: what this rank owns of them.
  void Update(const std::vector<int32_t>& sets);
  void AllGatherUpdated(int32_t set);
  void Broadcast(int32_t set, ElementRange range, int32_t tensor);
  void Release(const std::vector<int32_t>& buffers, StreamId stream, Phase phase,
               int32_t micro_batch);
  // What this rank owns of the full parameters, back into its shard.
  void WriteBack(int32_t set, int32_t full);
  void Loss(int32_t micro_batch);
  // Frees activations that no backward freed.
  void ReleaseActivations(int32_t micro_batch);

  StepPlan Take() { return std::move(plan_); }

 private:
  // What was last issued on each stream, as an index into plan_.ops; -1: nothing.
  using Last = std::array<int32_t, kStreams>;
  struct BufferState {
    bool live = false;
    Last write = {-1, -1};  // or allocation or free
    Last read = {-1, -1};
  };

  void DeclareSet(int32_t set);
  void DeclareActivations();
  void FindRuns();
  void FindNeeds();
  void Norm(bool sharded);
  void SumNorms();
  void Coefficient();
  void ScaleByCoefficient(int32_t set, bool last);
  void Access(int32_t buffer, AccessKind kind, ElementRange range);
  void AccessAll(int32_t buffer, AccessKind kind);
  void AllocateIfDead(int32_t buffer);
  void Issue(Op op);
  void WaitFor(Op& op, int32_t other_op);
  Op SetOp(OpKind kind, int32_t set, Phase phase, StreamId stream, int32_t micro_batch) const;
  Op CollectiveOp(CollectiveKind kind, Purpose purpose, int32_t set, Phase phase,
                  int32_t micro_batch, int64_t elements) const;
  void AddUpdates(int32_t set);
  void TouchState(int32_t set);
  ElementRange OwnPart(const TensorSet& set, Keeps keeps) const;
  const std::vector<int32_t>& SetsOf(const ComputeRun& run,
                                     const std::vector<int32_t>& set_of_tensor);
  void UseParameters(Op& op, const ComputeRun& run, const std::vector<int32_t>& buffers);
  bool AddsToLaterUse(const ComputeRun& run, int32_t set) const;
  void UseGradients(Op& op, const ComputeRun& run, const std::vector<int32_t>& buffers,
                    bool accumulate);

  const RunDescription& run_;
  const Placement& placement_;
  StepPlan plan_;
  std::vector<BufferState> buffers_;
  std::vector<ComputeRun> runs_;
  int32_t first_backward_run_ = 0;
  int32_t first_trainable_stage_ = 0;
  Last last_free_ = {-1, -1};
  Last waited_ = {-1, -1};         // by stream: the last op of the other stream it is ordered after
  std::vector<int32_t> last_use_;  // by tensor: the highest stage that uses it
  std::vector<PlanAccess> pending_;
  std::vector<int32_t> run_sets_;
  std::vector<int32_t> set_seen_;  // by set: the last SetsOf that listed it
  int32_t sets_seen_ = 0;
  const int64_t step_;
};

}  // namespace shardproof

#endif  // TRAINER_PLAN_PLAN_BUILDER_H_
