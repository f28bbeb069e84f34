// RunDescription: everything that defines a training run, as plain data.
//
// Planners turn it into steps, closed forms into expectations, generators make random
// ones. Two runs with equal descriptions compute equal bits. Counts are elements unless
// a name says _bytes.
//
// The modes (N ranks, P = bytes of the parameters):
//
//   mode             stands for                             state kept whole on each rank
//   replicated       ZeRO-0, PyTorch DDP                    parameters, gradients, optimizer
//   zero1_broadcast  PyTorch ZeroRedundancyOptimizer        parameters, gradients
//   zero1_allgather  DeepSpeed-style stage 1                parameters, gradients
//   zero2            canonical stage 2                      parameters
//   shard_grad_op    FSDP SHARD_GRAD_OP                     nothing outside computation
//   full_shard       FSDP FULL_SHARD, ZeRO-3                nothing outside computation
#ifndef INVARIANTS_RUN_DESCRIPTION_RUN_DESCRIPTION_H_
#define INVARIANTS_RUN_DESCRIPTION_RUN_DESCRIPTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// One parameter tensor, row-major. Tied tensors appear once; `aliases` names the others.
struct TensorSpec {
  std::string name = {};            // "layers.3.weight"
  std::vector<int64_t> shape = {};  // [out, in]; extents >= 0, so a tensor may be empty
  int64_t fan_in = 1;               // initial values lie in +-1/sqrt(fan_in)
  bool trainable = true;            // false: no gradient, no optimizer state
  std::vector<std::string> aliases = {};
};

// The product of the extents. Validate has checked that it fits int64.
int64_t Elements(const TensorSpec& tensor);

// One step of forward: what runs, with which tensors. Backward runs them in reverse.
struct Stage {
  std::string name = {};              // "layers.3"
  std::vector<int32_t> tensors = {};  // indices into ModelDescription::tensors
};

// What FSDP wraps: the stages whose tensors are gathered and reduced together. Stages of
// one unit need not be neighbours (a root unit holds embedding and head). A tensor that
// stages of several units use (tied weights) belongs to the unit of its first stage.
struct Unit {
  std::string name = {};
  std::vector<int32_t> stages = {};   // ascending indices into ModelDescription::stages
  bool reshard_after_forward = true;  // false: gathered once a micro-batch, as PyTorch's root
};

enum class ModelKind : uint8_t {
  kMlp,     // Linear layers with ReLU between, none last; stage i is layer i
  kProbe,   // any shapes, no layers: gradients are small integers (trainer/model/probe.h)
  kOpaque,  // shapes of a real architecture whose layers this trainer does not compute
};

struct ModelDescription {
  std::string name;  // what --model said
  ModelKind kind = ModelKind::kMlp;
  std::vector<TensorSpec> tensors;  // in registration order
  std::vector<Stage> stages;        // in forward order; every tensor is in a stage
  std::vector<Unit> units;          // by first stage; every stage is in exactly one unit
};

struct MixedPrecision {
  Dtype parameter = Dtype::kFloat32;  // what is gathered and computed with
  Dtype reduce = Dtype::kFloat32;     // what gradients are reduced in
  Dtype master = Dtype::kFloat32;     // what the optimizer updates
  Dtype moment = Dtype::kFloat32;     // exp_avg, exp_avg_sq
};

struct ShardingDescription {
  Mode mode = Mode::kReplicated;
  Prefetch prefetch = Prefetch::kNotApplicable;  // full_shard: one of the other three
  // zero1_broadcast has kOwner always; replicated has kFlat, which then shards nothing.
  LayoutKind layout = LayoutKind::kFlat;
  WorldSize world_size;
  // Ranks that share one copy of the state; 0 means all. Smaller: hybrid sharding.
  int32_t shard_group_size = 0;
  // Buckets of replicated, zero1_* and zero2: trainable tensors in reverse registration
  // order; a bucket closes when its bytes reach or pass this (DDP's rule). >= 1.
  int64_t bucket_cap_bytes = 64 << 20;
  GradSync grad_sync = GradSync::kEvery;
  // zero1_broadcast: one broadcast per owning rank instead of one per tensor.
  bool broadcast_bucket_view = false;
  // Divide by N*K before the sum over ranks, as DDP does, instead of after it.
  bool scale_before_reduce = false;
  // grad_sync=last only: keep units unsharded from one micro-batch to the next, as FSDP1
  // does for SHARD_GRAD_OP under no_sync. False: gather them in every micro-batch.
  bool keep_unsharded_between_micro_batches = false;
  MixedPrecision precision;
  MemoryTier parameter_tier = MemoryTier::kDevice;
  MemoryTier optimizer_tier = MemoryTier::kDevice;
};

// Hyper-parameters of some tensors, in place of OptimizerDescription's.
struct OptimizerGroup {
  std::vector<int32_t> tensors = {};  // ascending indices into ModelDescription::tensors
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double weight_decay = 0.01;
};

struct OptimizerDescription {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double momentum = 0.9;                    // SGD only
  std::vector<OptimizerGroup> groups = {};  // of disjoint tensors
};

struct DataDescription {
  int64_t steps = 3;
  int64_t micro_batch_size = 16;  // samples of one rank in one micro-batch
  int64_t num_micro_batches = 1;  // K
  uint64_t seed = 1;              // data, initial values, schedule
};

// In which steps a tensor is used.
enum class StepUse : uint8_t { kEvery, kEven, kOdd, kNever };

// A tensor that is used only sometimes: by one rank, in one micro-batch, in some steps. Where
// it is not used it contributes zeros to the mean, whose divisor stays N * K. In a step in
// which no rank uses it, it has no update, no decay and no step count. A tensor without a rule
// is used always. Tied tensors are used, or not, in all their stages.
struct UsageRule {
  int32_t tensor = -1;       // each tensor has at most one rule
  int32_t rank = -1;         // -1: every rank
  int32_t micro_batch = -1;  // -1: every micro-batch
  StepUse steps = StepUse::kEvery;
};

struct RunDescription {
  ModelDescription model;
  ShardingDescription sharding;
  OptimizerDescription optimizer;
  DataDescription data;
  // The norm over all trainable elements that gradients are clipped to, as PyTorch's
  // clip_grad_norm_ does: all of them times min(1, clip_grad_norm / (norm + 1e-6)), the norm of
  // the mean over ranks and micro-batches. 0: no clipping.
  double clip_grad_norm = 0;
  std::vector<UsageRule> usage;  // ascending tensors
};

// Facts read straight off the description.
int64_t ParameterElements(const ModelDescription& model);  // tied tensors once
int64_t TrainableElements(const ModelDescription& model);
// The tensors that belong to each unit, in order of first use, each in one unit only: that of
// its first stage.
std::vector<std::vector<int32_t>> TensorsOfUnits(const ModelDescription& model);
// tensor -> unit.
std::vector<int32_t> UnitOfTensor(const ModelDescription& model);
// stage -> unit.
std::vector<int32_t> UnitOfStage(const ModelDescription& model);
// Whether a rank's micro-batch of a step uses the tensor, and whether any of them does.
bool IsUsed(const RunDescription& run, int32_t tensor, int64_t step, Rank rank,
            int32_t micro_batch);
bool IsUsedInStep(const RunDescription& run, int32_t tensor, int64_t step);
// The hyper-parameters of one tensor: its group's, or the optimizer's. Without groups.
OptimizerDescription HyperParametersOf(const OptimizerDescription& optimizer, int32_t tensor);
// Makes `tied` an alias of `kept`: its stages use `kept`, and its index is gone; later tensors
// move down by one. InvalidArgument for an unknown name, two shapes or fan_ins, or a stage
// that would list a tensor twice. An alias of `kept` already: nothing happens.
absl::Status TieTensors(absl::string_view tied, absl::string_view kept, ModelDescription& model);
// "full_shard/backward_pre", "zero2".
std::string ModeRowName(const ShardingDescription& sharding);
// The ranks that share one copy of the state: shard_group_size, or the world.
int32_t ShardCount(const ShardingDescription& sharding);

// InvalidArgument with the offending value and what is accepted: no parameters, an extent
// below 0, a total beyond int64, an index out of range, a tensor in no stage, in two groups or
// with two usage rules, a stage in no unit, world size below 1, a group that does not divide it, a
// cap below 1, prefetch that does not fit the mode, layout that does not fit the mode, steps, batch
// sizes or K below 1, betas outside [0, 1), and the like. It never asks what a trainer can run:
// that is the trainer's refusal.
absl::Status Validate(const RunDescription& run);

}  // namespace shardproof

#endif  // INVARIANTS_RUN_DESCRIPTION_RUN_DESCRIPTION_H_
