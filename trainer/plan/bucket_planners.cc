// replicated, zero1_broadcast, zero1_allgather, zero2: parameters are whole on every rank
// and gradients are reduced in buckets.
#include <deque>
#include <vector>

#include "trainer/plan/mode_planners.h"

namespace shardproof {
namespace {

// Forward and backward of all micro-batches; what follows differs by mode.
class BucketStep {
 public:
  BucketStep(PlanBuilder& step, bool scatters) : step_(step), scatters_(scatters) {
    const Placement& placement = step.placement();
    for (const TensorSet& set : placement.sets) {
      if (set.bucket >= 0) buckets_.push_back(static_cast<int32_t>(&set - placement.sets.data()));
    }
    parameters_.assign(placement.sets.size(), -1);
    full_.assign(placement.sets.size(), -1);
    temporary_.assign(placement.sets.size(), -1);
    for (size_t set = 0; set < placement.sets.size(); ++set) {
      parameters_[set] = step.home(static_cast<int32_t>(set)).parameter;
    }
    const bool reduces_often =
        step.run().sharding.grad_sync == GradSync::kEvery && step.run().data.num_micro_batches > 1;
    for (int32_t set : buckets_) DeclareTransients(set, reduces_often);
    FindLowestStages();
  }

  void Compute() {
    const DataDescription& data = step_.run().data;
    step_.ReleaseGradients();
    for (int32_t k = 0; k < data.num_micro_batches; ++k) {
      for (const ComputeRun& run : step_.runs()) step_.Forward(run, k, parameters_);
      Backward(k, /*last=*/k + 1 == data.num_micro_batches);
    }
  }

  void ForwardOnly() {
    for (int32_t k = 0; k < step_.run().data.num_micro_batches; ++k) {
      for (const ComputeRun& run : step_.runs()) step_.Forward(run, k, parameters_);
      step_.Loss(k);
      step_.ReleaseActivations(k);
    }
  }

  const std::vector<int32_t>& buckets() const { return buckets_; }

 private:
  void DeclareTransients(int32_t index, bool reduces_often) {
    const TensorSet& set = step_.set(index);
    BufferSpec spec = {.role = BufferRole::kUnreducedGradient,
                       .elements = set.layout.padded_elements(),
                       .bucket = set.bucket,
                       .set = index};
    if (scatters_ || reduces_often) full_[index] = step_.AddBuffer(spec);
    if (!scatters_ || !reduces_often) return;
    spec.elements = set.layout.shard_elements;
    temporary_[index] = step_.AddBuffer(spec);
  }

  void FindLowestStages() {
    const std::vector<Stage>& stages = step_.run().model.stages;
    lowest_stage_.assign(full_.size(), 0);
    for (int32_t stage = static_cast<int32_t>(stages.size()) - 1; stage >= 0; --stage) {
      for (int32_t tensor : stages[stage].tensors) {
        const int32_t set = step_.placement().gradient_set[tensor];
        if (set >= 0) lowest_stage_[set] = stage;
      }
    }
  }

  void Backward(int32_t k, bool last) {
    const bool every = step_.run().sharding.grad_sync == GradSync::kEvery;
    const std::vector<int32_t> targets = GradientTargets(k);
    size_t next_bucket = 0;
    for (int32_t run = static_cast<int32_t>(step_.runs().size()) - 1;
         run >= step_.first_backward_run(); --run) {
      ReleaseReduced(/*keep=*/1, k);
      step_.Backward(step_.runs()[run], k, parameters_, targets, /*accumulate=*/k > 0 && !every);
      if (!every && !last) continue;
      while (next_bucket < buckets_.size() &&
             lowest_stage_[buckets_[next_bucket]] >= step_.runs()[run].stage) {
        Reduce(buckets_[next_bucket++], targets, k, last);
      }
    }
    ReleaseReduced(/*keep=*/0, k);
    step_.ReleaseActivations(k);
  }

  // By set, where this micro-batch's gradients go: straight into the bucket that is kept,
  // if the sum over ranks happens in place and nothing was reduced into it before.
  std::vector<int32_t> GradientTargets(int32_t k) const {
    const bool every = step_.run().sharding.grad_sync == GradSync::kEvery;
    std::vector<int32_t> targets(full_.size(), -1);
    for (int32_t set : buckets_) {
      const bool separate = scatters_ || (every && k > 0);
      targets[set] = separate ? full_[set] : step_.home(set).gradient;
    }
    return targets;
  }

  void Reduce(int32_t set, const std::vector<int32_t>& targets, int32_t k, bool last) {
    const int32_t gradient = step_.home(set).gradient;
    const int32_t full = targets[set];
    const bool before = step_.run().sharding.scale_before_reduce;
    int32_t reduced = full;
    if (before) step_.Scale(set, full, StreamId::kCompute, k);
    if (scatters_) {
      reduced = step_.live(gradient) ? temporary_[set] : gradient;
      step_.ReduceScatter(set, full, reduced, k);
    } else {
      step_.AllReduce(set, full, k);
    }
    if (full != gradient) reduced_.push_back(set);
    if (reduced != gradient) step_.Accumulate(set, reduced, gradient, k);
    if (last && !before) step_.Scale(set, gradient, StreamId::kCommunication, k);
  }

  // Frees reduced full gradients, oldest first, but for the `keep` most recent.
  void ReleaseReduced(size_t keep, int32_t k) {
    while (reduced_.size() > keep) {
      const int32_t set = reduced_.front();
      reduced_.pop_front();
      std::vector<int32_t> buffers = {full_[set]};
      if (temporary_[set] >= 0 && step_.live(temporary_[set])) {
        buffers.push_back(temporary_[set]);
      }
      step_.Release(buffers, StreamId::kCompute, Phase::kBackward, k);
    }
  }

  PlanBuilder& step_;
  const bool scatters_;
  std::vector<int32_t> buckets_;       // sets, in bucket order
  std::vector<int32_t> parameters_;    // by set
  std::vector<int32_t> full_;          // by set: gradient before a reduction that is not in place
  std::vector<int32_t> temporary_;     // by set: output of a later reduce-scatter
  std::vector<int32_t> lowest_stage_;  // by set: once backward has computed it, all is there
  std::deque<int32_t> reduced_;
};

// Every bucket's owned shard is updated, then gathered while the next one is updated.
void UpdateAndGather(PlanBuilder& step, const std::vector<int32_t>& buckets) {
  for (int32_t set : buckets) {
    step.Update({set});
    step.AllGatherUpdated(set);
  }
}

}  // namespace

void PlanReplicated(PlanBuilder& step) {
  BucketStep buckets(step, /*scatters=*/false);
  buckets.Compute();
  step.Clip(/*sharded=*/false);
  for (int32_t set : buckets.buckets()) step.Update({set});
}

void PlanZero1Broadcast(PlanBuilder& step) {
  BucketStep buckets(step, /*scatters=*/false);
  buckets.Compute();
  if (buckets.buckets().empty()) return;  // nothing is trainable
  step.Clip(/*sharded=*/false);
  const Placement& placement = step.placement();
  std::vector<int32_t> owned;
  for (size_t set = 0; set < placement.sets.size(); ++set) {
    if (placement.sets[set].owner == step.rank().value) owned.push_back(static_cast<int32_t>(set));
  }
  step.Update(owned);
  if (step.run().sharding.broadcast_bucket_view) {
    for (size_t set = 0; set < placement.sets.size(); ++set) {
      if (placement.sets[set].owner < 0) continue;
      step.Broadcast(static_cast<int32_t>(set), {0, placement.sets[set].layout.padded_elements()},
                     /*tensor=*/-1);
    }
    return;
  }
  for (size_t tensor = 0; tensor < placement.moment_set.size(); ++tensor) {
    const int32_t set = placement.moment_set[tensor];
    if (set < 0) continue;
    step.Broadcast(set,
                   {placement.moment_offset[tensor], Elements(step.run().model.tensors[tensor])},
                   static_cast<int32_t>(tensor));
  }
}

void PlanBucketForward(PlanBuilder& step) {
  BucketStep(step, /*scatters=*/step.run().sharding.mode == Mode::kZero2).ForwardOnly();
}

void DeclareBucketTransients(PlanBuilder& step) {
  BucketStep(step, /*scatters=*/step.run().sharding.mode == Mode::kZero2);
}

void PlanZero1AllGather(PlanBuilder& step) {
  BucketStep buckets(step, /*scatters=*/false);
  buckets.Compute();
  step.Clip(/*sharded=*/false);
  UpdateAndGather(step, buckets.buckets());
}

void PlanZero2(PlanBuilder& step) {
  BucketStep buckets(step, /*scatters=*/true);
  buckets.Compute();
  step.Clip(/*sharded=*/true);
  UpdateAndGather(step, buckets.buckets());
}

}  // namespace shardproof
