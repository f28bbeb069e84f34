#include "property_tests/generators/axes.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace shardproof {
namespace {

// ---------------------------------------------------------------- one function an axis

template <typename T, size_t n>
int32_t IndexIn(const T (&values)[n], const T& value) {
  return static_cast<int32_t>(std::find(values, values + n, value) - values);
}

int32_t ModeOf(const RunDescription& run) {
  const ShardingDescription& sharding = run.sharding;
  if (sharding.mode != Mode::kFullShard) return static_cast<int32_t>(sharding.mode);
  return static_cast<int32_t>(Mode::kFullShard) + static_cast<int32_t>(sharding.prefetch) - 1;
}

int32_t LayoutOf(const RunDescription& run) { return static_cast<int32_t>(run.sharding.layout); }

// What is in no list is the value behind the last.
int32_t WorldSizeOf(const RunDescription& run) {
  constexpr int32_t kSizes[] = {1, 2, 3, 4, 5, 8};
  return IndexIn(kSizes, run.sharding.world_size.value);
}

int32_t ModelOf(const RunDescription& run) {
  if (run.model.kind == ModelKind::kProbe) return 2;
  if (run.model.kind == ModelKind::kOpaque) return 3;
  return run.model.stages[0].tensors.size() > 1 ? 1 : 0;
}

int32_t MicroBatchesOf(const RunDescription& run) {
  return static_cast<int32_t>(std::min<int64_t>(run.data.num_micro_batches, 4)) - 1;
}

int32_t SamplesOf(const RunDescription& run) { return run.data.micro_batch_size > 1 ? 1 : 0; }

int32_t GradSyncOf(const RunDescription& run) {
  return static_cast<int32_t>(run.sharding.grad_sync);
}

int32_t KeptOf(const RunDescription& run) {
  return run.sharding.keep_unsharded_between_micro_batches ? 1 : 0;
}

int32_t BucketViewOf(const RunDescription& run) {
  return run.sharding.broadcast_bucket_view ? 1 : 0;
}

int32_t ScaleOf(const RunDescription& run) { return run.sharding.scale_before_reduce ? 1 : 0; }

int32_t OptimizerOf(const RunDescription& run) {
  if (run.optimizer.kind == OptimizerKind::kAdamW) return 0;
  return run.optimizer.momentum == 0 ? 2 : 1;
}

int32_t GroupsOf(const RunDescription& run) {
  return static_cast<int32_t>(std::min<size_t>(run.optimizer.groups.size(), 2));
}

int32_t DecayOf(const RunDescription& run) { return run.optimizer.weight_decay == 0 ? 0 : 1; }

int32_t RateOf(const RunDescription& run) { return run.optimizer.learning_rate > 0.1 ? 1 : 0; }

int32_t ClipOf(const RunDescription& run) {
  if (run.clip_grad_norm == 0) return 0;
  return run.clip_grad_norm < 0.01 ? 1 : run.clip_grad_norm < 1000 ? 2 : 3;
}

// The units that use each tensor more than once show as `within`, or as `across`.
int32_t TiesOf(const RunDescription& run) {
  const std::vector<int32_t> unit_of_stage = UnitOfStage(run.model);
  std::vector<int32_t> user(run.model.tensors.size(), -1);
  int32_t ties = 0;
  for (size_t stage = 0; stage < run.model.stages.size(); ++stage) {
    for (const int32_t tensor : run.model.stages[stage].tensors) {
      if (user[tensor] >= 0) ties = std::max(ties, user[tensor] == unit_of_stage[stage] ? 1 : 2);
      user[tensor] = unit_of_stage[stage];
    }
  }
  return ties;
}

int32_t TiedUnevenOf(const RunDescription& run) {
  return std::any_of(
      run.model.tensors.begin(), run.model.tensors.end(), [&run](const TensorSpec& tensor) {
        return !tensor.aliases.empty() && tensor.shape[0] % run.sharding.world_size.value != 0;
      });
}

int32_t UsedTwiceOf(const RunDescription& run) {
  const std::vector<Stage>& stages = run.model.stages;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (size_t before = 0; before < stage; ++before) {
      if (stages[stage].tensors == stages[before].tensors) return 1;
    }
  }
  return 0;
}

template <typename Predicate>
int32_t AnyRule(const RunDescription& run, Predicate predicate) {
  return std::any_of(run.usage.begin(), run.usage.end(), predicate) ? 1 : 0;
}

int32_t NeverUsedOf(const RunDescription& run) {
  return AnyRule(run, [](const UsageRule& rule) { return rule.steps == StepUse::kNever; });
}

int32_t SomeStepsOf(const RunDescription& run) {
  return AnyRule(run, [](const UsageRule& rule) {
    return rule.steps == StepUse::kEven || rule.steps == StepUse::kOdd;
  });
}

int32_t OneRankOf(const RunDescription& run) {
  return AnyRule(run, [&run](const UsageRule& rule) {
    return rule.rank >= 0 && run.sharding.world_size.value > 1 && rule.steps != StepUse::kNever;
  });
}

int32_t OneMicroBatchOf(const RunDescription& run) {
  return AnyRule(run, [&run](const UsageRule& rule) {
    return rule.micro_batch >= 0 && run.data.num_micro_batches > 1 && rule.steps != StepUse::kNever;
  });
}

int32_t FrozenOf(const RunDescription& run) {
  const std::vector<TensorSpec>& tensors = run.model.tensors;
  const auto is_frozen = [](const TensorSpec& tensor) { return !tensor.trainable; };
  if (std::none_of(tensors.begin(), tensors.end(), is_frozen)) return 0;
  if (std::all_of(tensors.begin(), tensors.end(), is_frozen)) return 4;
  return is_frozen(tensors.front()) ? 1 : is_frozen(tensors.back()) ? 2 : 3;
}

int32_t EmptyOf(const RunDescription& run) {
  return std::any_of(run.model.tensors.begin(), run.model.tensors.end(),
                     [](const TensorSpec& tensor) { return Elements(tensor) == 0; });
}

int32_t ElementsOf(const RunDescription& run) {
  const int64_t elements = ParameterElements(run.model);
  const int64_t ranks = run.sharding.world_size.value;
  return elements < ranks ? 0 : elements % ranks != 0 ? 1 : 2;
}

int32_t CapOf(const RunDescription& run) {
  const int64_t cap = run.sharding.bucket_cap_bytes;
  bool below_all = true;
  bool one_off = false;
  for (const TensorSpec& tensor : run.model.tensors) {
    const int64_t bytes = 4 * Elements(tensor);
    if (bytes == cap) return 1;
    one_off = one_off || bytes == cap - 4 || bytes == cap + 4;
    below_all = below_all && (bytes == 0 || cap < bytes);
  }
  if (one_off) return 2;
  if (below_all) return 0;
  const int64_t model = 4 * ParameterElements(run.model);
  return cap < model ? 3 : cap == model ? 4 : 5;
}

// DDP's rule: a bucket closes when it reaches or passes the cap.
int32_t BucketsOf(const RunDescription& run) {
  int32_t buckets = 0;
  int64_t open = 0;
  for (size_t i = run.model.tensors.size(); i-- > 0;) {
    const TensorSpec& tensor = run.model.tensors[i];
    if (!tensor.trainable || Elements(tensor) == 0) continue;
    if (open == 0) ++buckets;
    open += 4 * Elements(tensor);
    if (open >= run.sharding.bucket_cap_bytes) open = 0;
  }
  return std::min(buckets, 3);
}

int32_t UnitsOf(const RunDescription& run) {
  const std::vector<Unit>& units = run.model.units;
  if (units.size() == run.model.stages.size()) return 0;
  if (units.size() == 1) return 1;
  const bool together = std::all_of(units.begin(), units.end(), [](const Unit& unit) {
    return unit.stages.back() - unit.stages.front() + 1 == static_cast<int32_t>(unit.stages.size());
  });
  return together ? 2 : 3;
}

int32_t UnshardedOf(const RunDescription& run) {
  return std::any_of(run.model.units.begin(), run.model.units.end(),
                     [](const Unit& unit) { return !unit.reshard_after_forward; });
}

// ---------------------------------------------------------------- the axes, in one place

constexpr absl::string_view kNoYes = "no yes";

struct AxisEntry {
  absl::string_view name;
  absl::string_view values;  // joined by spaces
  int32_t (*value_of)(const RunDescription& run);
};

constexpr AxisEntry kAxes[] = {
    {"mode",
     "replicated zero1_broadcast zero1_allgather zero2 shard_grad_op full_shard/backward_pre "
     "full_shard/backward_post full_shard/none",
     ModeOf},
    {"layout", "flat flat_aligned rows owner", LayoutOf},
    {"world_size", "1 2 3 4 5 8 other", WorldSizeOf},
    {"model", "mlp mlp_bias probe opaque", ModelOf},
    {"micro_batches", "1 2 3 more", MicroBatchesOf},
    {"samples", "1 more", SamplesOf},
    {"grad_sync", "every last", GradSyncOf},
    {"kept_unsharded", kNoYes, KeptOf},
    {"bucket_view", kNoYes, BucketViewOf},
    {"scale", "after before", ScaleOf},
    {"optimizer", "adamw sgd_momentum sgd", OptimizerOf},
    {"groups", "none one several", GroupsOf},
    {"weight_decay", kNoYes, DecayOf},
    {"learning_rate", "usual large", RateOf},
    {"clip", "none tiny small huge", ClipOf},
    {"ties", "none within_a_unit across_units", TiesOf},
    {"tied_uneven", kNoYes, TiedUnevenOf},
    {"stage_used_twice", kNoYes, UsedTwiceOf},
    {"never_used", kNoYes, NeverUsedOf},
    {"used_in_some_steps", kNoYes, SomeStepsOf},
    {"used_on_one_rank", kNoYes, OneRankOf},
    {"used_in_one_micro_batch", kNoYes, OneMicroBatchOf},
    {"frozen", "none first last inner all", FrozenOf},
    {"empty_tensors", kNoYes, EmptyOf},
    {"elements", "fewer_than_ranks uneven even", ElementsOf},
    {"bucket_cap", "below_all a_tensor one_off between the_model above", CapOf},
    {"buckets", "0 1 2 more", BucketsOf},
    {"units", "one_a_stage one consecutive interleaved", UnitsOf},
    {"unit_stays_unsharded", kNoYes, UnshardedOf},
};

// Pairs that no run has. A '!' means every other value; values that no generator draws are
// there too.
struct Impossible {
  absl::string_view axis;
  absl::string_view value;
  absl::string_view other_axis;
  absl::string_view other_value;
};

constexpr Impossible kImpossible[] = {
    {"mode", "replicated", "layout", "!flat"},
    {"mode", "zero1_broadcast", "layout", "!owner"},
    {"mode", "!zero1_broadcast", "bucket_view", "yes"},
    {"layout", "!owner", "bucket_view", "yes"},
    {"mode", "replicated", "kept_unsharded", "yes"},
    {"mode", "zero1_broadcast", "kept_unsharded", "yes"},
    {"mode", "zero1_allgather", "kept_unsharded", "yes"},
    {"mode", "zero2", "kept_unsharded", "yes"},
    {"bucket_view", "yes", "kept_unsharded", "yes"},
    {"grad_sync", "every", "kept_unsharded", "yes"},
    {"world_size", "1", "elements", "!even"},
    {"world_size", "1", "tied_uneven", "yes"},
    {"world_size", "1", "used_on_one_rank", "yes"},
    {"micro_batches", "1", "used_in_one_micro_batch", "yes"},
    {"ties", "none", "tied_uneven", "yes"},
    {"ties", "none", "stage_used_twice", "yes"},
    {"ties", "within_a_unit", "units", "one_a_stage"},
    {"ties", "across_units", "units", "one"},
    {"frozen", "all", "buckets", "!0"},
    {"frozen", "none", "buckets", "0"},
    {"bucket_cap", "the_model", "buckets", "2"},
    {"bucket_cap", "the_model", "buckets", "more"},
    {"bucket_cap", "above", "buckets", "2"},
    {"bucket_cap", "above", "buckets", "more"},
};

// Only probe models have these.
constexpr std::pair<absl::string_view, absl::string_view> kOfProbes[] = {
    {"learning_rate", "large"},  {"never_used", "yes"},    {"used_in_some_steps", "yes"},
    {"used_on_one_rank", "yes"}, {"empty_tensors", "yes"}, {"used_in_one_micro_batch", "yes"}};

bool Matches(absl::string_view pattern, absl::string_view value) {
  return pattern[0] == '!' ? pattern.substr(1) != value : pattern == value;
}

bool IsExcluded(absl::string_view axis, absl::string_view value, absl::string_view other_axis,
                absl::string_view other_value) {
  for (const Impossible& pair : kImpossible) {
    if (axis == pair.axis && other_axis == pair.other_axis && Matches(pair.value, value) &&
        Matches(pair.other_value, other_value)) {
      return true;
    }
  }
  if (axis != "model" || value == "probe") return false;
  for (const auto& [of_probe, probe_value] : kOfProbes) {
    if (other_axis == of_probe && other_value == probe_value) return true;
  }
  return false;
}

// Values that the generator never draws: other worlds, K above 3, opaque models.
bool IsOutside(absl::string_view axis, absl::string_view value) {
  return (axis == "world_size" && value == "other") || (axis == "model" && value == "opaque") ||
         (axis == "micro_batches" && value == "more");
}

std::vector<absl::string_view> SplitValues(absl::string_view text) {
  std::vector<absl::string_view> values;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    values.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return values;
}

}  // namespace

std::vector<Axis> AllAxes() {
  std::vector<Axis> axes;
  for (const AxisEntry& entry : kAxes) axes.push_back({entry.name, SplitValues(entry.values)});
  return axes;
}

std::vector<int32_t> AxisValues(const RunDescription& run) {
  std::vector<int32_t> values;
  values.reserve(std::size(kAxes));
  for (const AxisEntry& entry : kAxes) values.push_back(entry.value_of(run));
  return values;
}

std::vector<std::pair<absl::string_view, absl::string_view>> DescribeAxes(
    const RunDescription& run) {
  std::vector<std::pair<absl::string_view, absl::string_view>> described;
  for (const AxisEntry& entry : kAxes) {
    described.emplace_back(entry.name, SplitValues(entry.values)[entry.value_of(run)]);
  }
  return described;
}

Coverage::Coverage() : axes_(AllAxes()) {
  size_t values = 0;
  for (const Axis& axis : axes_) {
    first_.push_back(values);
    values += axis.values.size();
  }
  seen_.assign(values, 0);
  pairs_.assign(values * values, false);
}

void Coverage::Add(const std::vector<int32_t>& values) {
  ++runs_;
  for (size_t axis = 0; axis < values.size(); ++axis) {
    const size_t index = first_[axis] + values[axis];
    ++seen_[index];
    for (size_t other = axis + 1; other < values.size(); ++other) {
      pairs_[PairIndex(index, first_[other] + values[other])] = true;
    }
  }
}

void Coverage::Add(const Coverage& other) {
  runs_ += other.runs_;
  for (size_t i = 0; i < seen_.size(); ++i) seen_[i] += other.seen_[i];
  for (size_t i = 0; i < pairs_.size(); ++i) pairs_[i] = pairs_[i] || other.pairs_[i];
}

int64_t Coverage::ValuesSeen() const {
  return std::count_if(seen_.begin(), seen_.end(), [](int64_t count) { return count > 0; });
}

int64_t Coverage::ValuesPossible() const {
  int64_t possible = 0;
  for (const Axis& axis : axes_) {
    possible +=
        std::count_if(axis.values.begin(), axis.values.end(),
                      [&axis](absl::string_view value) { return !IsOutside(axis.name, value); });
  }
  return possible;
}

template <typename Visit>
void Coverage::VisitPairs(Visit visit) const {
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    for (size_t value = 0; value < axes_[axis].values.size(); ++value) {
      for (size_t other = axis + 1; other < axes_.size(); ++other) {
        for (size_t second = 0; second < axes_[other].values.size(); ++second) {
          visit(Pair{axis, value, other, second});
        }
      }
    }
  }
}

bool Coverage::IsPossible(const Pair& pair) const {
  const absl::string_view axis = axes_[pair.axis].name;
  const absl::string_view other = axes_[pair.other].name;
  const absl::string_view value = axes_[pair.axis].values[pair.value];
  const absl::string_view second = axes_[pair.other].values[pair.second];
  return !IsOutside(axis, value) && !IsOutside(other, second) &&
         !IsExcluded(axis, value, other, second) && !IsExcluded(other, second, axis, value);
}

bool Coverage::IsSeen(const Pair& pair) const {
  return pairs_[PairIndex(first_[pair.axis] + pair.value, first_[pair.other] + pair.second)];
}

std::string Coverage::Text(const Pair& pair) const {
  return absl::StrCat(axes_[pair.axis].name, "=", axes_[pair.axis].values[pair.value], " x ",
                      axes_[pair.other].name, "=", axes_[pair.other].values[pair.second]);
}

int64_t Coverage::PairsSeen() const {
  int64_t count = 0;
  VisitPairs([&](const Pair& pair) { count += IsPossible(pair) && IsSeen(pair) ? 1 : 0; });
  return count;
}

int64_t Coverage::PairsPossible() const {
  int64_t count = 0;
  VisitPairs([&](const Pair& pair) { count += IsPossible(pair) ? 1 : 0; });
  return count;
}

std::vector<std::string> Coverage::PairsMissing() const {
  std::vector<std::string> missing;
  VisitPairs([&](const Pair& pair) {
    if (IsPossible(pair) && !IsSeen(pair)) missing.push_back(Text(pair));
  });
  return missing;
}

std::vector<std::string> Coverage::PairsWronglyExcluded() const {
  std::vector<std::string> wrong;
  VisitPairs([&](const Pair& pair) {
    if (!IsPossible(pair) && IsSeen(pair)) wrong.push_back(Text(pair));
  });
  return wrong;
}

std::string Coverage::Table() const {
  std::string table;
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    std::vector<std::string> cells;
    int64_t seen = 0;
    int64_t possible = 0;
    for (size_t value = 0; value < axes_[axis].values.size(); ++value) {
      if (IsOutside(axes_[axis].name, axes_[axis].values[value]) && Seen(axis, value) == 0)
        continue;
      ++possible;
      seen += Seen(axis, value) > 0 ? 1 : 0;
      cells.push_back(absl::StrFormat("%s %.3g%%", axes_[axis].values[value],
                                      runs_ == 0 ? 0.0 : 100.0 * Seen(axis, value) / runs_));
    }
    absl::StrAppendFormat(&table, "  %-24s %d of %d: %s\n", axes_[axis].name, seen, possible,
                          absl::StrJoin(cells, ", "));
  }
  return table;
}

}  // namespace shardproof
