#include "invariants/run_description/run_description.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/message_text.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

// Parameter, gradient and two moments in float32. A model's bytes stay in int64 when its
// elements times this do; ValidateTotals bounds the bytes of all ranks, padding included.
constexpr int64_t kStateBytesPerElement = 16;
constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / kStateBytesPerElement;

absl::Status Refuse(const absl::AlphaNum& what, const absl::AlphaNum& value,
                    const absl::AlphaNum& accepted) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", value, "; accepted: ", accepted));
}

template <typename T>
std::string Place(absl::string_view list, size_t index, const T& entry) {
  return absl::StrCat("model.", list, "[", index, "] '", Shown(entry.name), "'");
}

std::string PrintShape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status ValidateShape(const TensorSpec& tensor, size_t index, int64_t& total) {
  const auto refuse = [&](absl::string_view accepted) {
    return Refuse(absl::StrCat(Place("tensors", index, tensor), ": shape"),
                  PrintShape(tensor.shape), accepted);
  };
  if (tensor.shape.empty()) return refuse("at least one extent (a scalar has shape [1])");
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape) {
    if (extent < 0) return refuse("extents from 0");
    if (elements > 0 && extent > kMaxElements / elements) {
      return refuse(absl::StrCat("at most ", kMaxElements, " elements"));
    }
    elements *= extent;
  }
  if (elements > kMaxElements - total) {
    return Refuse(absl::StrCat("model: the total up to ", Place("tensors", index, tensor)),
                  absl::StrCat("more than ", kMaxElements, " elements"),
                  "a total whose bytes fit a signed 64-bit integer");
  }
  total += elements;
  return absl::OkStatus();
}

absl::Status ValidateTensors(const ModelDescription& model) {
  if (model.tensors.empty()) {
    return absl::InvalidArgumentError("model has no parameters; accepted: at least one tensor");
  }
  int64_t total = 0;
  // Views of names that outlive the set: a large model has tens of thousands.
  std::unordered_set<std::string_view> names;
  names.reserve(model.tensors.size());
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const TensorSpec& tensor = model.tensors[i];
    SHARDPROOF_RETURN_IF_ERROR(ValidateShape(tensor, i, total));
    if (tensor.fan_in < 1) {
      return Refuse(absl::StrCat(Place("tensors", i, tensor), ": fan_in"), tensor.fan_in,
                    "an integer from 1");
    }
    if (tensor.name.empty()) {
      return Refuse(absl::StrCat("model.tensors[", i, "]: name"), "''", "a name");
    }
    // Observations and checkpoints find tensors by name.
    if (!names.insert(tensor.name).second) {
      return Refuse(Place("tensors", i, tensor), "a repeated name", "each name once");
    }
    for (const std::string& alias : tensor.aliases) {
      if (alias.empty() || !names.insert(alias).second) {
        return Refuse(absl::StrCat(Place("tensors", i, tensor), ": alias '", Shown(alias), "'"),
                      alias.empty() ? "empty" : "a repeated name", "each name once");
      }
    }
  }
  if (total == 0) {
    return absl::InvalidArgumentError(
        "model has only empty tensors; accepted: at least one element");
  }
  return absl::OkStatus();
}

absl::Status ValidateStages(const ModelDescription& model) {
  const int32_t tensors = static_cast<int32_t>(model.tensors.size());
  std::vector<size_t> last_stage(model.tensors.size(), model.stages.size());
  for (size_t s = 0; s < model.stages.size(); ++s) {
    const Stage& stage = model.stages[s];
    for (const int32_t tensor : stage.tensors) {
      if (tensor < 0 || tensor >= tensors) {
        return Refuse(absl::StrCat(Place("stages", s, stage), ": tensor"), tensor,
                      absl::StrCat("an index from 0 to ", tensors - 1));
      }
      if (last_stage[tensor] == s) {
        return Refuse(absl::StrCat(Place("stages", s, stage), ": tensor ", tensor), "listed twice",
                      "each tensor once in a stage");
      }
      last_stage[tensor] = s;
    }
  }
  for (size_t t = 0; t < last_stage.size(); ++t) {
    if (last_stage[t] == model.stages.size()) {
      return Refuse(Place("tensors", t, model.tensors[t]), "in no stage",
                    "every tensor in at least one stage");
    }
  }
  return absl::OkStatus();
}

// The stages of one unit, and the unit's place among the others. `unit_of_stage` holds -1
// for stages that no earlier unit has.
absl::Status ValidateUnitStages(const ModelDescription& model, size_t u,
                                std::vector<int32_t>& unit_of_stage) {
  const Unit& unit = model.units[u];
  const std::string place = Place("units", u, unit);
  const int32_t stages = static_cast<int32_t>(model.stages.size());
  if (unit.stages.empty()) return Refuse(place, "empty", "at least one stage");
  int32_t previous = -1;
  for (const int32_t stage : unit.stages) {
    if (stage < 0 || stage >= stages) {
      return Refuse(absl::StrCat(place, ": stage"), stage,
                    absl::StrCat("an index from 0 to ", stages - 1));
    }
    if (stage <= previous) {
      return Refuse(absl::StrCat(place, ": stage ", stage), absl::StrCat("behind ", previous),
                    "ascending stages");
    }
    if (unit_of_stage[stage] >= 0) {
      return Refuse(Place("stages", stage, model.stages[stage]),
                    absl::StrCat("in units ", unit_of_stage[stage], " and ", u),
                    "every stage in exactly one unit");
    }
    unit_of_stage[stage] = static_cast<int32_t>(u);
    previous = stage;
  }
  if (u > 0 && unit.stages.front() < model.units[u - 1].stages.front()) {
    return Refuse(absl::StrCat(place, ": first stage"), unit.stages.front(),
                  absl::StrCat("units in order of their first stage (the unit before has ",
                               model.units[u - 1].stages.front(), ")"));
  }
  return absl::OkStatus();
}

absl::Status ValidateUnits(const ModelDescription& model) {
  std::vector<int32_t> unit_of_stage(model.stages.size(), -1);
  for (size_t u = 0; u < model.units.size(); ++u) {
    SHARDPROOF_RETURN_IF_ERROR(ValidateUnitStages(model, u, unit_of_stage));
  }
  for (size_t s = 0; s < model.stages.size(); ++s) {
    if (unit_of_stage[s] < 0) {
      return Refuse(Place("stages", s, model.stages[s]), "in no unit",
                    "every stage in exactly one unit");
    }
  }
  return absl::OkStatus();
}

// Layers are computed from shapes alone, so an mlp whose shapes do not chain would read
// past the end of a buffer.
absl::Status ValidateMlp(const ModelDescription& model) {
  int64_t width = 0;
  for (size_t s = 0; s < model.stages.size(); ++s) {
    const Stage& stage = model.stages[s];
    const std::string place = Place("stages", s, stage);
    if (stage.tensors.empty() || stage.tensors.size() > 2) {
      return Refuse(absl::StrCat(place, ": the number of tensors of an mlp's layer"),
                    stage.tensors.size(), "a weight [out, in], and a bias [out] or none");
    }
    const std::vector<int64_t>& weight = model.tensors[stage.tensors[0]].shape;
    if (std::find(weight.begin(), weight.end(), 0) != weight.end()) {
      return Refuse(absl::StrCat(place, ": the weight's shape"), PrintShape(weight),
                    "extents from 1 (only a probe may have empty tensors)");
    }
    if (weight.size() != 2 || (s > 0 && weight[1] != width)) {
      return Refuse(absl::StrCat(place, ": the weight's shape"), PrintShape(weight),
                    s == 0 ? std::string("[out, in]") : absl::StrCat("[out, ", width, "]"));
    }
    width = weight[0];
    if (stage.tensors.size() < 2) continue;
    const std::vector<int64_t>& bias = model.tensors[stage.tensors[1]].shape;
    if (bias != std::vector<int64_t>{width}) {
      return Refuse(absl::StrCat(place, ": the bias's shape"), PrintShape(bias),
                    absl::StrCat("[", width, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateModel(const ModelDescription& model) {
  SHARDPROOF_RETURN_IF_ERROR(ValidateTensors(model));
  SHARDPROOF_RETURN_IF_ERROR(ValidateStages(model));
  SHARDPROOF_RETURN_IF_ERROR(ValidateUnits(model));
  return model.kind == ModelKind::kMlp ? ValidateMlp(model) : absl::OkStatus();
}

absl::Status ValidateWorld(const ShardingDescription& sharding) {
  const int32_t world = sharding.world_size.value;
  if (world < 1) return Refuse("world_size", world, "an integer from 1");
  const int32_t group = sharding.shard_group_size;
  if (group < 0 || (group > 0 && world % group != 0)) {
    return Refuse("shard_group_size", group,
                  absl::StrCat("0 (all ranks), or a divisor of world_size ", world));
  }
  if (sharding.bucket_cap_bytes < 1) {
    return Refuse("bucket_cap_bytes", sharding.bucket_cap_bytes, "an integer from 1");
  }
  return absl::OkStatus();
}

// Options that a mode would ignore are refused: whoever sets one expects it to do something.
absl::Status ValidateModeOptions(const ShardingDescription& sharding) {
  const Mode mode = sharding.mode;
  const auto refuse = [mode](absl::string_view key, absl::string_view value,
                             absl::string_view accepted) {
    return Refuse(absl::StrCat(key, " of mode ", Name(mode)), value, accepted);
  };
  const bool has_prefetch = sharding.prefetch != Prefetch::kNotApplicable;
  if (has_prefetch != (mode == Mode::kFullShard)) {
    return refuse(
        "prefetch", Name(sharding.prefetch),
        mode == Mode::kFullShard ? "backward_pre, backward_post, none" : "not_applicable");
  }
  if (mode == Mode::kZero1Broadcast && sharding.layout != LayoutKind::kOwner) {
    return refuse("layout", Name(sharding.layout), "owner");
  }
  if (mode == Mode::kReplicated && sharding.layout != LayoutKind::kFlat) {
    return refuse("layout", Name(sharding.layout), "flat");
  }
  if (sharding.broadcast_bucket_view && mode != Mode::kZero1Broadcast) {
    return refuse("broadcast_bucket_view", "1", "0 (1 only with mode zero1_broadcast)");
  }
  if (sharding.keep_unsharded_between_micro_batches &&
      !(ShardsUnits(mode) && sharding.grad_sync == GradSync::kLast)) {
    return refuse("keep_unsharded_between_micro_batches",
                  absl::StrCat("1 with grad_sync ", Name(sharding.grad_sync)),
                  "0 (1 only with mode shard_grad_op or full_shard and grad_sync last)");
  }
  return absl::OkStatus();
}

// `place` is "" for the optimizer's own, else "groups[2]: ".
absl::Status ValidateHyperParameters(absl::string_view place, double learning_rate, double beta1,
                                     double beta2, double weight_decay) {
  for (const auto& [key, beta] : {std::pair("beta1", beta1), std::pair("beta2", beta2)}) {
    if (!(beta >= 0 && beta < 1)) {
      return Refuse(absl::StrCat(place, key), beta, "a number from 0 to below 1");
    }
  }
  for (const auto& [key, value] :
       {std::pair("learning_rate", learning_rate), std::pair("weight_decay", weight_decay)}) {
    if (!(std::isfinite(value) && value >= 0)) {
      return Refuse(absl::StrCat(place, key), value, "a finite number from 0");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateGroups(const RunDescription& run) {
  std::vector<bool> seen(run.model.tensors.size(), false);
  for (size_t g = 0; g < run.optimizer.groups.size(); ++g) {
    const OptimizerGroup& group = run.optimizer.groups[g];
    const std::string place = absl::StrCat("groups[", g, "]: ");
    SHARDPROOF_RETURN_IF_ERROR(ValidateHyperParameters(place, group.learning_rate, group.beta1,
                                                       group.beta2, group.weight_decay));
    if (group.tensors.empty())
      return Refuse(absl::StrCat(place, "tensors"), "empty", "one or more");
    int32_t previous = -1;
    for (const int32_t tensor : group.tensors) {
      if (tensor <= previous || static_cast<size_t>(tensor) >= seen.size()) {
        return Refuse(absl::StrCat(place, "tensor"), tensor,
                      absl::StrCat("ascending indices from 0 to ", seen.size() - 1));
      }
      if (seen[tensor]) {
        return Refuse(absl::StrCat(place, "tensor"), tensor, "each tensor in one group");
      }
      seen[tensor] = true;
      previous = tensor;
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateOptimizer(const RunDescription& run) {
  const OptimizerDescription& optimizer = run.optimizer;
  SHARDPROOF_RETURN_IF_ERROR(ValidateHyperParameters("", optimizer.learning_rate, optimizer.beta1,
                                                     optimizer.beta2, optimizer.weight_decay));
  for (const auto& [key, value] :
       {std::pair("epsilon", optimizer.epsilon), std::pair("momentum", optimizer.momentum)}) {
    if (!(std::isfinite(value) && value >= 0)) {
      return Refuse(key, value, "a finite number from 0");
    }
  }
  return ValidateGroups(run);
}

absl::Status ValidateUsage(const RunDescription& run) {
  int32_t previous = -1;
  for (const UsageRule& rule : run.usage) {
    if (rule.tensor <= previous || static_cast<size_t>(rule.tensor) >= run.model.tensors.size()) {
      return Refuse("usage: tensor", rule.tensor,
                    absl::StrCat("ascending indices from 0 to ", run.model.tensors.size() - 1));
    }
    previous = rule.tensor;
    const std::string place = absl::StrCat("usage of tensor ", rule.tensor, ": ");
    if (rule.rank < -1 || rule.rank >= run.sharding.world_size.value) {
      return Refuse(absl::StrCat(place, "rank"), rule.rank,
                    absl::StrCat("-1 (every rank), or 0 to ", run.sharding.world_size.value - 1));
    }
    if (rule.micro_batch < -1 || rule.micro_batch >= run.data.num_micro_batches) {
      return Refuse(
          absl::StrCat(place, "micro_batch"), rule.micro_batch,
          absl::StrCat("-1 (every micro-batch), or 0 to ", run.data.num_micro_batches - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateData(const RunDescription& run) {
  const DataDescription& data = run.data;
  int64_t samples = run.sharding.world_size.value;
  bool overflow = false;
  for (const auto& [key, value] :
       {std::pair("steps", data.steps), std::pair("micro_batch_size", data.micro_batch_size),
        std::pair("num_micro_batches", data.num_micro_batches)}) {
    if (value < 1) return Refuse(key, value, "an integer from 1");
    overflow = overflow || __builtin_mul_overflow(samples, value, &samples);
  }
  if (overflow) {
    return absl::InvalidArgumentError(absl::StrCat(
        "steps * num_micro_batches * world_size * micro_batch_size is ", data.steps, " * ",
        data.num_micro_batches, " * ", run.sharding.world_size.value, " * ", data.micro_batch_size,
        "; accepted: a product that fits a signed 64-bit integer"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t Elements(const TensorSpec& tensor) {
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape) elements *= extent;
  return elements;
}

int64_t ParameterElements(const ModelDescription& model) {
  int64_t elements = 0;
  for (const TensorSpec& tensor : model.tensors) elements += Elements(tensor);
  return elements;
}

int64_t TrainableElements(const ModelDescription& model) {
  int64_t elements = 0;
  for (const TensorSpec& tensor : model.tensors) {
    if (tensor.trainable) elements += Elements(tensor);
  }
  return elements;
}

std::vector<std::vector<int32_t>> TensorsOfUnits(const ModelDescription& model) {
  const std::vector<int32_t> unit_of_tensor = UnitOfTensor(model);
  std::vector<std::vector<int32_t>> tensors(model.units.size());
  std::vector<bool> listed(model.tensors.size(), false);
  for (size_t unit = 0; unit < model.units.size(); ++unit) {
    for (const int32_t stage : model.units[unit].stages) {
      for (const int32_t tensor : model.stages[stage].tensors) {
        if (listed[tensor] || unit_of_tensor[tensor] != static_cast<int32_t>(unit)) continue;
        listed[tensor] = true;
        tensors[unit].push_back(tensor);
      }
    }
  }
  return tensors;
}

std::vector<int32_t> UnitOfTensor(const ModelDescription& model) {
  const std::vector<int32_t> unit_of_stage = UnitOfStage(model);
  std::vector<int32_t> unit_of_tensor(model.tensors.size(), -1);
  for (size_t stage = 0; stage < model.stages.size(); ++stage) {
    for (const int32_t tensor : model.stages[stage].tensors) {
      if (unit_of_tensor[tensor] < 0) unit_of_tensor[tensor] = unit_of_stage[stage];
    }
  }
  return unit_of_tensor;
}

namespace {

const UsageRule* RuleOf(const RunDescription& run, int32_t tensor) {
  for (const UsageRule& rule : run.usage) {
    if (rule.tensor == tensor) return &rule;
  }
  return nullptr;
}

bool IncludesStep(const UsageRule& rule, int64_t step) {
  switch (rule.steps) {
    case StepUse::kEvery:
      return true;
    case StepUse::kEven:
      return step % 2 == 0;
    case StepUse::kOdd:
      return step % 2 == 1;
    case StepUse::kNever:
      return false;
  }
  return false;
}

int32_t FindTensor(const ModelDescription& model, absl::string_view name) {
  for (size_t tensor = 0; tensor < model.tensors.size(); ++tensor) {
    if (model.tensors[tensor].name == name) return static_cast<int32_t>(tensor);
  }
  return -1;
}

}  // namespace

bool IsUsed(const RunDescription& run, int32_t tensor, int64_t step, Rank rank,
            int32_t micro_batch) {
  const UsageRule* const rule = RuleOf(run, tensor);
  return rule == nullptr ||
         (IncludesStep(*rule, step) && (rule->rank < 0 || rule->rank == rank.value) &&
          (rule->micro_batch < 0 || rule->micro_batch == micro_batch));
}

// Rank and micro-batch of a rule exist, so some rank uses the tensor in each of its steps.
bool IsUsedInStep(const RunDescription& run, int32_t tensor, int64_t step) {
  const UsageRule* const rule = RuleOf(run, tensor);
  return rule == nullptr || IncludesStep(*rule, step);
}

OptimizerDescription HyperParametersOf(const OptimizerDescription& optimizer, int32_t tensor) {
  OptimizerDescription result = {.kind = optimizer.kind,
                                 .learning_rate = optimizer.learning_rate,
                                 .beta1 = optimizer.beta1,
                                 .beta2 = optimizer.beta2,
                                 .epsilon = optimizer.epsilon,
                                 .weight_decay = optimizer.weight_decay,
                                 .momentum = optimizer.momentum};
  for (const OptimizerGroup& group : optimizer.groups) {
    if (!std::binary_search(group.tensors.begin(), group.tensors.end(), tensor)) continue;
    result.learning_rate = group.learning_rate;
    result.beta1 = group.beta1;
    result.beta2 = group.beta2;
    result.weight_decay = group.weight_decay;
  }
  return result;
}

absl::Status TieTensors(absl::string_view tied, absl::string_view kept, ModelDescription& model) {
  const int32_t to = FindTensor(model, kept);
  if (to < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", Shown(kept), "' is not in the model; accepted: its tensors"));
  }
  TensorSpec& keeper = model.tensors[to];
  const bool known =
      std::find(keeper.aliases.begin(), keeper.aliases.end(), tied) != keeper.aliases.end();
  if (known) return absl::OkStatus();
  const int32_t from = FindTensor(model, tied);
  if (from < 0 || from == to) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", Shown(tied),
                     "' is not in the model, or tied to itself; accepted: "
                     "two of its tensors"));
  }
  const TensorSpec gone = model.tensors[from];
  if (gone.shape != keeper.shape || gone.fan_in != keeper.fan_in) {
    return Refuse(
        absl::StrCat("tied tensor '", Shown(tied), "': shape"), PrintShape(gone.shape),
        absl::StrCat(PrintShape(keeper.shape), " of '", Shown(kept), "', with the same fan_in"));
  }
  for (const Stage& stage : model.stages) {
    const auto lists = [&stage](int32_t tensor) {
      return std::find(stage.tensors.begin(), stage.tensors.end(), tensor) != stage.tensors.end();
    };
    if (lists(from) && lists(to)) {
      return Refuse(absl::StrCat("stage '", Shown(stage.name), "'"), "of both tied tensors",
                    "each tensor once in a stage");
    }
  }
  keeper.aliases.push_back(gone.name);
  keeper.aliases.insert(keeper.aliases.end(), gone.aliases.begin(), gone.aliases.end());
  for (Stage& stage : model.stages) {
    for (int32_t& tensor : stage.tensors) {
      if (tensor == from) tensor = to;
      if (tensor > from) --tensor;
    }
  }
  model.tensors.erase(model.tensors.begin() + from);
  return absl::OkStatus();
}

std::vector<int32_t> UnitOfStage(const ModelDescription& model) {
  std::vector<int32_t> unit_of_stage(model.stages.size(), -1);
  for (size_t u = 0; u < model.units.size(); ++u) {
    for (const int32_t stage : model.units[u].stages) {
      unit_of_stage[stage] = static_cast<int32_t>(u);
    }
  }
  return unit_of_stage;
}

std::string ModeRowName(const ShardingDescription& sharding) {
  if (sharding.mode != Mode::kFullShard) return std::string(Name(sharding.mode));
  return absl::StrCat(Name(sharding.mode), "/", Name(sharding.prefetch));
}

int32_t ShardCount(const ShardingDescription& sharding) {
  return sharding.shard_group_size > 0 ? sharding.shard_group_size : sharding.world_size.value;
}

namespace {

// State of all ranks and payload of all micro-batches, padded: no layout more than doubles a
// rank's whole model. In 64 bits, so that no sum behind Validate can wrap and look right.
absl::Status ValidateTotals(const RunDescription& run) {
  const int64_t most = std::numeric_limits<int64_t>::max() / (2 * kStateBytesPerElement) /
                       (int64_t{run.sharding.world_size.value} + 1) / run.data.num_micro_batches;
  const int64_t elements = ParameterElements(run.model);
  if (elements <= most) return absl::OkStatus();
  return Refuse(absl::StrCat("the model on ", run.sharding.world_size.value, " ranks with ",
                             run.data.num_micro_batches, " micro-batches"),
                absl::StrCat(elements, " elements"),
                absl::StrCat("at most ", most, ", so that bytes fit 64 bits"));
}

}  // namespace

absl::Status Validate(const RunDescription& run) {
  SHARDPROOF_RETURN_IF_ERROR(ValidateModel(run.model));
  SHARDPROOF_RETURN_IF_ERROR(ValidateWorld(run.sharding));
  SHARDPROOF_RETURN_IF_ERROR(ValidateModeOptions(run.sharding));
  SHARDPROOF_RETURN_IF_ERROR(ValidateOptimizer(run));
  SHARDPROOF_RETURN_IF_ERROR(ValidateData(run));
  SHARDPROOF_RETURN_IF_ERROR(ValidateUsage(run));
  if (!(std::isfinite(run.clip_grad_norm) && run.clip_grad_norm >= 0)) {
    return Refuse("clip_grad_norm", run.clip_grad_norm, "0 (no clipping), or a finite norm");
  }
  return ValidateTotals(run);
}

}  // namespace shardproof
