// shard_grad_op and full_shard: parameters are sharded outside computation.
#include <deque>
#include <vector>

#include "trainer/plan/mode_planners.h"

namespace shardproof {
namespace {

// One micro-batch after the other, with what is unsharded and what waits to be released.
class UnitStep {
 public:
  UnitStep(PlanBuilder& step, bool reshard_after_forward)
      : step_(step), reshard_after_forward_(reshard_after_forward) {
    const size_t sets = step.placement().sets.size();
    full_.assign(sets, -1);
    unreduced_.assign(sets, -1);
    temporary_.assign(sets, -1);
    unsharded_.assign(sets, false);
    last_run_.assign(sets, -1);
    last_backward_run_.assign(sets, -1);
    for (size_t set = 0; set < sets; ++set) DeclareTransients(static_cast<int32_t>(set));
    for (int32_t run = 0; run < static_cast<int32_t>(step.runs().size()); ++run) {
      for (int32_t set : step.runs()[run].needs) {
        last_run_[set] = run;
        const bool reached = run >= step.first_backward_run();
        if (reached && last_backward_run_[set] < 0) last_backward_run_[set] = run;
      }
    }
  }

  void Run() {
    const DataDescription& data = step_.run().data;
    step_.ReleaseGradients();
    for (int32_t k = 0; k < data.num_micro_batches; ++k) {
      const bool last = k + 1 == data.num_micro_batches;
      reduces_ = last || step_.run().sharding.grad_sync == GradSync::kEvery;
      reshards_in_backward_ =
          reduces_ || !step_.run().sharding.keep_unsharded_between_micro_batches;
      Forward(k);
      Backward(k, last);
    }
    step_.Clip(/*sharded=*/true);
    for (size_t set = 0; set < step_.placement().sets.size(); ++set) {
      if (step_.home(static_cast<int32_t>(set)).gradient >= 0) {
        step_.Update({static_cast<int32_t>(set)});
      }
    }
  }

  // As forward of a step, but nothing stays unsharded for a backward.
  void ForwardOnly() {
    for (int32_t k = 0; k < step_.run().data.num_micro_batches; ++k) {
      Forward(k);
      for (size_t set = 0; set < full_.size(); ++set) {
        Reshard(static_cast<int32_t>(set), Phase::kForward, k);
      }
      step_.Loss(k);
      step_.ReleaseActivations(k);
    }
  }

  void OpenView() {
    for (size_t set = 0; set < full_.size(); ++set) {
      Gather(static_cast<int32_t>(set), Phase::kOther, /*k=*/-1);
    }
  }

  void CloseView(bool write_back) {
    for (size_t index = 0; index < full_.size(); ++index) {
      if (full_[index] < 0) continue;
      const int32_t set = static_cast<int32_t>(index);
      step_.AssumeLive(full_[set]);
      unsharded_[set] = true;
      if (write_back) step_.WriteBack(set, full_[set]);
      Reshard(set, Phase::kOther, /*k=*/-1);
    }
  }

 private:
  void DeclareTransients(int32_t index) {
    const TensorSet& set = step_.set(index);
    BufferSpec spec = {.role = BufferRole::kUnshardedParameter,
                       .elements = set.layout.padded_elements(),
                       .unit = set.unit,
                       .set = index};
    if (spec.elements == 0) return;
    full_[index] = step_.AddBuffer(spec);
    if (!set.trainable) return;
    spec.role = BufferRole::kUnreducedGradient;
    unreduced_[index] = step_.AddBuffer(spec);
    if (step_.run().sharding.grad_sync == GradSync::kLast) return;
    if (step_.run().data.num_micro_batches == 1) return;
    spec.elements = set.layout.shard_elements;
    temporary_[index] = step_.AddBuffer(spec);
  }

  void Gather(int32_t set, Phase phase, int32_t k) {
    if (full_[set] < 0 || unsharded_[set]) return;
    step_.Unshard(set, full_[set], phase, k);
    unsharded_[set] = true;
  }

  void Reshard(int32_t set, Phase phase, int32_t k) {
    if (full_[set] < 0 || !unsharded_[set]) return;
    step_.Reshard(set, full_[set], phase, k);
    unsharded_[set] = false;
  }

  bool BackwardReaches(int32_t set) const { return last_backward_run_[set] >= 0; }

  bool ReshardsAfterForward(int32_t set) const {
    return !BackwardReaches(set) ||
           (reshard_after_forward_ && step_.run().model.units[set].reshard_after_forward);
  }

  void GatherNeeds(int32_t run, Phase phase, int32_t k) {
    for (int32_t set : step_.runs()[run].needs) Gather(set, phase, k);
  }

  // The reshard of a run is issued after the next run's gather: that gather may run beside
  // this computation, and the one after it waits for the memory.
  void Forward(int32_t k) {
    const int32_t runs = static_cast<int32_t>(step_.runs().size());
    const auto reshard_due_after = [&](int32_t run) {
      if (run < 0) return;
      for (int32_t set : step_.runs()[run].needs) {
        if (run == last_run_[set] && ReshardsAfterForward(set)) Reshard(set, Phase::kForward, k);
      }
    };
    for (int32_t run = 0; run < runs; ++run) {
      GatherNeeds(run, Phase::kForward, k);
      reshard_due_after(run - 1);
      step_.Forward(step_.runs()[run], k, full_);
    }
    reshard_due_after(runs - 1);
  }

  void Backward(int32_t k, bool last) {
    const Prefetch prefetch = step_.run().sharding.prefetch;
    const int32_t first = step_.first_backward_run();
    for (int32_t run = static_cast<int32_t>(step_.runs().size()) - 1; run >= first; --run) {
      std::vector<int32_t> ends;  // units that no lower run needs
      for (int32_t set : step_.runs()[run].needs) {
        if (run == last_backward_run_[set]) ends.push_back(set);
      }
      GatherNeeds(run, Phase::kBackward, k);
      if (prefetch == Prefetch::kBackwardPre) GatherNext(run, k);
      ReleaseReduced(/*keep=*/1, StreamId::kCompute, k);
      step_.Backward(step_.runs()[run], k, full_, unreduced_,
                     /*accumulate=*/k > 0 && step_.run().sharding.grad_sync == GradSync::kLast);
      for (int32_t set : ends) {
        if (reshards_in_backward_) Reshard(set, Phase::kBackward, k);
      }
      if (prefetch == Prefetch::kBackwardPost) GatherNext(run, k);
      for (int32_t set : ends) {
        if (!reduces_ || unreduced_[set] < 0) continue;
        Reduce(set, k, last);
        if (prefetch == Prefetch::kNone) ReleaseReduced(0, StreamId::kCommunication, k);
      }
    }
    ReleaseReduced(/*keep=*/0, StreamId::kCompute, k);
    step_.ReleaseActivations(k);
  }

  void GatherNext(int32_t run, int32_t k) {
    if (run - 1 < step_.first_backward_run()) return;
    GatherNeeds(run - 1, Phase::kBackward, k);
  }

  void Reduce(int32_t set, int32_t k, bool last) {
    const int32_t gradient = step_.home(set).gradient;
    const bool before = step_.run().sharding.scale_before_reduce;
    const bool first_reduction = !step_.live(gradient);
    if (before) step_.Scale(set, unreduced_[set], StreamId::kCompute, k);
    step_.ReduceScatter(set, unreduced_[set], first_reduction ? gradient : temporary_[set], k);
    reduced_.push_back(set);
    if (!first_reduction) step_.Accumulate(set, temporary_[set], gradient, k);
    if (last && !before) step_.Scale(set, gradient, StreamId::kCommunication, k);
  }

  // Frees reduced full gradients, oldest first, but for the `keep` most recent.
  void ReleaseReduced(size_t keep, StreamId stream, int32_t k) {
    while (reduced_.size() > keep) {
      const int32_t set = reduced_.front();
      reduced_.pop_front();
      std::vector<int32_t> buffers = {unreduced_[set]};
      if (temporary_[set] >= 0 && step_.live(temporary_[set])) {
        buffers.push_back(temporary_[set]);
      }
      step_.Release(buffers, stream, Phase::kBackward, k);
    }
  }

  PlanBuilder& step_;
  const bool reshard_after_forward_;
  bool reduces_ = true;
  bool reshards_in_backward_ = true;
  // By set, which here is the unit: full parameters, full gradient, a later reduction's output.
  std::vector<int32_t> full_;
  std::vector<int32_t> unreduced_;
  std::vector<int32_t> temporary_;
  std::vector<bool> unsharded_;
  std::vector<int32_t> last_run_;           // of forward
  std::vector<int32_t> last_backward_run_;  // the lowest that backward reaches; -1: none
  std::deque<int32_t> reduced_;
};

}  // namespace

void PlanShardGradOp(PlanBuilder& step) { UnitStep(step, /*reshard_after_forward=*/false).Run(); }

void PlanFullShard(PlanBuilder& step) { UnitStep(step, /*reshard_after_forward=*/true).Run(); }

void PlanUnitForward(PlanBuilder& step) {
  UnitStep(step, step.run().sharding.mode == Mode::kFullShard).ForwardOnly();
}

void PlanUnitViewOpening(PlanBuilder& step) {
  UnitStep(step, /*reshard_after_forward=*/true).OpenView();
}

void PlanUnitViewClosing(PlanBuilder& step, bool write_back) {
  UnitStep(step, /*reshard_after_forward=*/true).CloseView(write_back);
}

void DeclareUnitTransients(PlanBuilder& step) { UnitStep(step, /*reshard_after_forward=*/true); }

}  // namespace shardproof
