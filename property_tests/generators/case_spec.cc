#include "property_tests/generators/case_spec.h"

#include <algorithm>
#include <numeric>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

constexpr double kClipNorms[] = {0, 1e-3, 0.5, 1e6};

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

// Any number as a place below `count`; -1 is the last one.
int32_t PlaceIn(int32_t number, int32_t count) { return ((number % count) + count) % count; }

// ---------------------------------------------------------------- the model's shapes and ties

// Two different places each. A tie of a model with one place alone is none.
Pairs TiedPlaces(const CaseSpec& spec, int32_t places) {
  Pairs pairs;
  if (places < 2) return pairs;
  for (const TieSpec& tie : spec.ties) {
    const int32_t kept = PlaceIn(tie.kept, places);
    const int32_t same = PlaceIn(tie.tied, places);
    const int32_t tied = same == kept ? PlaceIn(kept + 1, places) : same;
    pairs.emplace_back(kept, tied);
    if (spec.probe && tie.next_too) {
      pairs.emplace_back(PlaceIn(kept + 1, places), PlaceIn(tied + 1, places));
    }
  }
  return pairs;
}

// place -> the lowest place that the pairs connect it with.
std::vector<int32_t> Classes(const Pairs& pairs, int32_t places) {
  std::vector<int32_t> lowest(static_cast<size_t>(places));
  std::iota(lowest.begin(), lowest.end(), 0);
  for (const auto& [a, b] : pairs) {
    const int32_t from = std::max(lowest[a], lowest[b]);
    const int32_t to = std::min(lowest[a], lowest[b]);
    std::replace(lowest.begin(), lowest.end(), from, to);
  }
  return lowest;
}

std::vector<int32_t> AtLeastTwo(std::vector<int32_t> widths) {
  if (widths.size() < 2) widths.resize(2, 1);
  return widths;
}

// Tied layers have the same input and output width.
std::vector<int32_t> MlpWidths(const CaseSpec& spec) {
  std::vector<int32_t> widths = AtLeastTwo(spec.widths);
  const int32_t count = static_cast<int32_t>(widths.size());
  Pairs same_width;
  for (const auto& [kept, tied] : TiedPlaces(spec, count - 1)) {
    same_width.emplace_back(kept, tied);
    same_width.emplace_back(kept + 1, tied + 1);
  }
  const std::vector<int32_t> classes = Classes(same_width, count);
  std::vector<int32_t> result;
  for (const int32_t place : classes) result.push_back(std::max(1, widths[place]));
  return result;
}

// Consecutive extents become shapes of rank 1, 2, 3, 1, 2, ...; tied tensors have one shape.
std::vector<std::vector<int32_t>> ProbeShapes(const CaseSpec& spec) {
  const std::vector<int32_t> extents = AtLeastTwo(spec.widths);
  std::vector<std::vector<int32_t>> shapes;
  for (size_t at = 0; at < extents.size();) {
    const size_t end = std::min(at + shapes.size() % 3 + 1, extents.size());
    shapes.emplace_back(extents.begin() + at, extents.begin() + end);
    at = end;
  }
  const int32_t count = static_cast<int32_t>(shapes.size());
  const std::vector<int32_t> classes = Classes(TiedPlaces(spec, count), count);
  bool all_empty = true;
  for (int32_t place = 0; place < count; ++place) {
    shapes[place] = shapes[classes[place]];
    const std::vector<int32_t>& shape = shapes[place];
    all_empty = all_empty && std::find(shape.begin(), shape.end(), 0) != shape.end();
  }
  if (!all_empty) return shapes;
  // A model has at least one element. Places of the first one's class stay equal to it.
  for (int32_t place = 0; place < count; ++place) {
    if (classes[place] == 0) std::replace(shapes[place].begin(), shapes[place].end(), 0, 1);
  }
  return shapes;
}

// The tensor that has the name, or has it as an alias.
const TensorSpec* FindTensor(const ModelDescription& model, const std::string& name) {
  for (const TensorSpec& tensor : model.tensors) {
    if (tensor.name == name ||
        std::find(tensor.aliases.begin(), tensor.aliases.end(), name) != tensor.aliases.end()) {
      return &tensor;
    }
  }
  return nullptr;
}

absl::Status Tie(const std::string& kept, const std::string& tied, ModelDescription& model) {
  const TensorSpec* const to = FindTensor(model, kept);
  const TensorSpec* const from = FindTensor(model, tied);
  if (to == nullptr || from == nullptr) {
    return absl::InternalError(absl::StrCat("the importer names no tensor ", kept, " or ", tied));
  }
  if (to == from) return absl::OkStatus();
  // Copies: the model changes under the names.
  const std::string to_name = to->name;
  const std::string from_name = from->name;
  return TieTensors(from_name, to_name, model);
}

absl::Status TieAll(const CaseSpec& spec, ModelDescription& model) {
  const int32_t places = static_cast<int32_t>(model.stages.size());
  for (const auto& [kept, tied] : TiedPlaces(spec, places)) {
    if (spec.probe) {
      SHARDPROOF_RETURN_IF_ERROR(Tie(absl::StrCat("t", kept), absl::StrCat("t", tied), model));
      continue;
    }
    const std::string to = absl::StrCat("layers.", kept);
    const std::string from = absl::StrCat("layers.", tied);
    SHARDPROOF_RETURN_IF_ERROR(
        Tie(absl::StrCat(to, ".weight"), absl::StrCat(from, ".weight"), model));
    const bool biases = spec.bias && std::any_of(spec.ties.begin(), spec.ties.end(),
                                                 [](const TieSpec& tie) { return tie.next_too; });
    if (!biases) continue;
    SHARDPROOF_RETURN_IF_ERROR(Tie(absl::StrCat(to, ".bias"), absl::StrCat(from, ".bias"), model));
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- units

std::vector<int32_t> UnitsOfStages(const CaseSpec& spec, int32_t stages) {
  std::vector<int32_t> unit_of_stage;
  int32_t units = 0;
  for (int32_t stage = 0; stage < stages; ++stage) {
    const bool is_listed = static_cast<size_t>(stage) < spec.joins.size();
    const int32_t back = is_listed ? spec.joins[stage] : 0;
    if (spec.root && stage > 0 && stage == stages - 1) {
      unit_of_stage.push_back(0);
    } else if (back > 0 && back <= stage) {
      unit_of_stage.push_back(unit_of_stage[stage - back]);
    } else {
      unit_of_stage.push_back(units++);
    }
  }
  return unit_of_stage;
}

// Leaves the importer's units where the spec asks for none.
void GroupStages(const CaseSpec& spec, ModelDescription& model) {
  const int32_t stages = static_cast<int32_t>(model.stages.size());
  const std::vector<int32_t> unit_of_stage = UnitsOfStages(spec, stages);
  const int32_t count = *std::max_element(unit_of_stage.begin(), unit_of_stage.end()) + 1;
  if (count != stages) {
    model.units.assign(static_cast<size_t>(count), Unit());
    for (int32_t stage = 0; stage < stages; ++stage) {
      Unit& unit = model.units[unit_of_stage[stage]];
      absl::StrAppend(&unit.name, unit.stages.empty() ? "" : "+", model.stages[stage].name);
      unit.stages.push_back(stage);
    }
  }
  for (const int32_t place : spec.unsharded) {
    model.units[PlaceIn(place, count)].reshard_after_forward = false;
  }
}

// ---------------------------------------------------------------- the rest of the run

int64_t CapBytes(const CapSpec& cap, const ModelDescription& model) {
  int64_t elements = cap.number;
  if (cap.relation == CapRelation::kModel) elements = ParameterElements(model);
  if (cap.relation == CapRelation::kTensor) {
    const int32_t tensors = static_cast<int32_t>(model.tensors.size());
    elements = Elements(model.tensors[PlaceIn(cap.number, tensors)]);
  }
  return 4 * std::max<int64_t>(1, elements + cap.off);
}

ShardingDescription MakeSharding(const CaseSpec& spec, const ModelDescription& model) {
  ShardingDescription sharding;
  sharding.mode = spec.mode;
  sharding.prefetch = spec.mode == Mode::kFullShard ? spec.prefetch : Prefetch::kNotApplicable;
  sharding.layout = spec.mode == Mode::kReplicated       ? LayoutKind::kFlat
                    : spec.mode == Mode::kZero1Broadcast ? LayoutKind::kOwner
                                                         : spec.layout;
  sharding.world_size = WorldSize{spec.world_size};
  sharding.bucket_cap_bytes = CapBytes(spec.cap, model);
  sharding.grad_sync = spec.sync_last ? GradSync::kLast : GradSync::kEvery;
  sharding.broadcast_bucket_view = spec.bucket_view && spec.mode == Mode::kZero1Broadcast;
  sharding.scale_before_reduce = spec.scale_before;
  sharding.keep_unsharded_between_micro_batches =
      spec.keep_unsharded && spec.sync_last && ShardsUnits(spec.mode);
  return sharding;
}

std::vector<UsageRule> MakeUsage(const CaseSpec& spec, int32_t tensors) {
  std::vector<UsageRule> rules;
  if (!spec.probe) return rules;
  for (const UsageSpec& usage : spec.usage) {
    UsageRule rule;
    rule.tensor = PlaceIn(usage.tensor, tensors);
    if (usage.rank >= 0) rule.rank = usage.rank % spec.world_size;
    if (usage.micro_batch >= 0) rule.micro_batch = usage.micro_batch % spec.num_micro_batches;
    rule.steps = usage.steps;
    const bool says_always = rule.rank < 0 && rule.micro_batch < 0 && rule.steps == StepUse::kEvery;
    const bool is_second = std::any_of(rules.begin(), rules.end(), [&rule](const UsageRule& other) {
      return other.tensor == rule.tensor;
    });
    if (!says_always && !is_second) rules.push_back(rule);
  }
  std::sort(rules.begin(), rules.end(),
            [](const UsageRule& a, const UsageRule& b) { return a.tensor < b.tensor; });
  return rules;
}

OptimizerGroup MakeGroup(const GroupSpec& spec, const OptimizerDescription& base) {
  OptimizerGroup group;
  group.learning_rate = (spec.changes & 2) != 0 ? base.learning_rate * 8 : base.learning_rate;
  const bool has_betas = base.kind == OptimizerKind::kAdamW;
  group.beta1 = has_betas && (spec.changes & 4) != 0 ? 0.5 : base.beta1;
  group.beta2 = has_betas && (spec.changes & 8) != 0 ? 0.75 : base.beta2;
  // Without decay where the others have it, and the other way round.
  group.weight_decay =
      (spec.changes & 1) == 0 ? base.weight_decay : (base.weight_decay == 0 ? 0.1 : 0);
  return group;
}

OptimizerDescription MakeOptimizer(const CaseSpec& spec, int32_t tensors) {
  OptimizerDescription optimizer;
  optimizer.kind = spec.sgd ? OptimizerKind::kSgd : OptimizerKind::kAdamW;
  if (spec.sgd && spec.no_momentum) optimizer.momentum = 0;
  if (spec.probe && spec.large_rate) optimizer.learning_rate = 0.5;
  optimizer.weight_decay = spec.weight_decay_hundredths / 100.0;
  std::vector<bool> has_group(static_cast<size_t>(tensors), false);
  for (const GroupSpec& drawn : spec.groups) {
    OptimizerGroup group = MakeGroup(drawn, optimizer);
    for (const int32_t place : drawn.tensors) {
      const int32_t tensor = PlaceIn(place, tensors);
      if (has_group[tensor]) continue;
      has_group[tensor] = true;
      group.tensors.push_back(tensor);
    }
    std::sort(group.tensors.begin(), group.tensors.end());
    if (!group.tensors.empty()) optimizer.groups.push_back(std::move(group));
  }
  return optimizer;
}

}  // namespace

std::string ModelText(const CaseSpec& spec) {
  if (!spec.probe) {
    return absl::StrCat("mlp:", absl::StrJoin(MlpWidths(spec), ","), spec.bias ? ":bias" : "");
  }
  return absl::StrCat(
      "probe:", absl::StrJoin(ProbeShapes(spec), ",", [](std::string* out, const auto& shape) {
        absl::StrAppend(out, absl::StrJoin(shape, "x"));
      }));
}

absl::StatusOr<RunDescription> MakeCase(const CaseSpec& spec, const ModelImporter& importer) {
  RunDescription run;
  SHARDPROOF_ASSIGN_OR_RETURN(run.model, importer(ModelText(spec)));
  SHARDPROOF_RETURN_IF_ERROR(TieAll(spec, run.model));
  GroupStages(spec, run.model);
  const int32_t tensors = static_cast<int32_t>(run.model.tensors.size());
  for (const int32_t place : spec.frozen) {
    run.model.tensors[PlaceIn(place, tensors)].trainable = false;
  }
  run.sharding = MakeSharding(spec, run.model);
  run.optimizer = MakeOptimizer(spec, tensors);
  run.usage = MakeUsage(spec, tensors);
  run.clip_grad_norm = kClipNorms[PlaceIn(spec.clip, std::size(kClipNorms))];
  run.data.micro_batch_size = spec.micro_batch_size;
  run.data.num_micro_batches = spec.num_micro_batches;
  run.data.seed = static_cast<uint64_t>(spec.seed);
  SHARDPROOF_RETURN_IF_ERROR(Validate(run));
  return run;
}

std::ostream& operator<<(std::ostream& out, const CaseSpec& spec) {
  return out << ModelText(spec) << " " << Name(spec.mode) << " on " << spec.world_size
             << " ranks, seed " << spec.seed;
}

}  // namespace shardproof
