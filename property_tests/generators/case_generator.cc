#include "property_tests/generators/case_generator.h"

#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

constexpr Mode kModes[] = {Mode::kReplicated, Mode::kZero1Broadcast, Mode::kZero1AllGather,
                           Mode::kZero2,      Mode::kShardGradOp,    Mode::kFullShard};
constexpr Prefetch kPrefetches[] = {Prefetch::kBackwardPre, Prefetch::kBackwardPost,
                                    Prefetch::kNone};

// All alike likely at every size; shrinks to the first. (rapidcheck's elementOf does not shrink.)
template <typename T, size_t n>
rc::Gen<T> OneOf(const std::vector<T>& allowed, const T (&all)[n]) {
  const std::vector<T> values = allowed.empty() ? std::vector<T>(all, all + n) : allowed;
  return rc::gen::map(rc::gen::resize(rc::kNominalSize, rc::gen::inRange<size_t>(0, values.size())),
                      [values](size_t index) { return values[index]; });
}

// One in four is at the edge: 1, a number of ranks, or one off it.
rc::Gen<int32_t> Width(int32_t most) {
  return rc::gen::map(rc::gen::pair(rc::gen::inRange(0, 4), rc::gen::inRange(1, most + 1)),
                      [most](const std::pair<int32_t, int32_t>& drawn) {
                        constexpr int32_t kEdges[] = {1, 2, 3, 4, 5, 7, 8, 9};
                        return drawn.first == 3 ? std::min(kEdges[drawn.second % 8], most)
                                                : drawn.second;
                      });
}

rc::Gen<std::vector<int32_t>> Widths(const CaseLimits& limits) {
  return rc::gen::mapcat(
      rc::gen::inRange(2, limits.max_layers + 2), [width = limits.max_width](int32_t count) {
        return rc::gen::container<std::vector<int32_t>>(static_cast<size_t>(count), Width(width));
      });
}

rc::Gen<bool> Flag(bool drawn) { return drawn ? rc::gen::arbitrary<bool>() : rc::gen::just(false); }

// Mostly none, else one to three places.
rc::Gen<std::vector<int32_t>> Frozen(bool drawn) {
  if (!drawn) return rc::gen::just(std::vector<int32_t>());
  return rc::gen::mapcat(rc::gen::inRange(0, 6), [](int32_t choice) {
    return rc::gen::container<std::vector<int32_t>>(
        static_cast<size_t>(choice < 3 ? 0 : choice - 2), rc::gen::inRange(0, 12));
  });
}

// Few elements, as many as a layer has, or more than any model here.
rc::Gen<int32_t> BucketElements() {
  return rc::gen::oneOf(rc::gen::inRange(1, 8), rc::gen::inRange(1, 1200),
                        rc::gen::just<int32_t>(1 << 20));
}

// Consecutive dimensions become shapes of rank 1, 2, 3, 1, 2, ...
std::vector<std::string> ProbeShapes(const std::vector<int32_t>& extents) {
  std::vector<std::string> shapes;
  size_t rank = 1;
  for (size_t at = 0; at < extents.size();) {
    const size_t end = std::min(at + rank, extents.size());
    shapes.push_back(absl::StrJoin(extents.begin() + at, extents.begin() + end, "x"));
    at = end;
    rank = rank % 3 + 1;
  }
  return shapes;
}

// Groups of consecutive stages; with a root, first and last stage make one more unit.
std::vector<Unit> GroupStages(const CaseSpec& spec, int32_t stages) {
  std::vector<Unit> units;
  const bool root = spec.root && stages >= 3;
  if (root) {
    Unit unit;
    unit.stages = {0, stages - 1};
    unit.reshard_after_forward = false;
    units.push_back(unit);
  }
  bool first = true;
  for (int32_t stage = root ? 1 : 0; stage < stages - (root ? 1 : 0); ++stage) {
    const bool joins = !first && static_cast<size_t>(stage) < spec.joins.size() &&
                       spec.joins[static_cast<size_t>(stage)];
    if (!joins) units.emplace_back();
    units.back().stages.push_back(stage);
    first = false;
  }
  for (size_t unit = 0; unit < units.size(); ++unit) {
    units[unit].name = absl::StrCat("unit", unit);
  }
  return units;
}

}  // namespace

rc::Gen<CaseSpec> AnyCase(const CaseLimits& limits) {
  constexpr int32_t kWorldSizes[] = {1, 2, 3, 4, 5, 8};
  constexpr LayoutKind kLayouts[] = {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows,
                                     LayoutKind::kOwner};
  const bool all = limits.all_features;
  return rc::gen::build<CaseSpec>(
      rc::gen::set(&CaseSpec::widths, Widths(limits)),
      rc::gen::set(&CaseSpec::probe,
                   all ? rc::gen::map(rc::gen::inRange(0, 4), [](int32_t n) { return n == 3; })
                       : rc::gen::just(false)),
      rc::gen::set(&CaseSpec::bias, rc::gen::arbitrary<bool>()),
      rc::gen::set(&CaseSpec::joins,
                   all ? rc::gen::container<std::vector<bool>>(6, rc::gen::arbitrary<bool>())
                       : rc::gen::just(std::vector<bool>())),
      rc::gen::set(&CaseSpec::root, Flag(all)),
      rc::gen::set(&CaseSpec::mode, OneOf(limits.modes, kModes)),
      rc::gen::set(&CaseSpec::prefetch, OneOf(limits.prefetches, kPrefetches)),
      rc::gen::set(&CaseSpec::layout, OneOf<LayoutKind>({}, kLayouts)),
      rc::gen::set(&CaseSpec::world_size, OneOf(limits.world_sizes, kWorldSizes)),
      rc::gen::set(&CaseSpec::bucket_elements, BucketElements()),
      rc::gen::set(&CaseSpec::micro_batch_size, rc::gen::inRange(1, 5)),
      rc::gen::set(&CaseSpec::num_micro_batches,
                   all ? rc::gen::inRange(1, 4) : rc::gen::just<int32_t>(1)),
      rc::gen::set(&CaseSpec::sync_last, Flag(all)),
      rc::gen::set(&CaseSpec::keep_unsharded, Flag(all)),
      rc::gen::set(&CaseSpec::bucket_view, Flag(all)),
      rc::gen::set(&CaseSpec::scale_before, Flag(all)), rc::gen::set(&CaseSpec::sgd, Flag(all)),
      rc::gen::set(&CaseSpec::no_momentum, Flag(all)), rc::gen::set(&CaseSpec::frozen, Frozen(all)),
      rc::gen::set(&CaseSpec::weight_decay_hundredths, rc::gen::inRange(0, 3)),
      rc::gen::set(&CaseSpec::seed, rc::gen::inRange(1, 1 << 30)));
}

std::string ModelText(const CaseSpec& spec) {
  if (spec.probe) return absl::StrCat("probe:", absl::StrJoin(ProbeShapes(spec.widths), ","));
  return absl::StrCat("mlp:", absl::StrJoin(spec.widths, ","), spec.bias ? ":bias" : "");
}

absl::StatusOr<RunDescription> MakeCase(const CaseSpec& spec, const ModelImporter& importer) {
  RunDescription run;
  SHARDPROOF_ASSIGN_OR_RETURN(run.model, importer(ModelText(spec)));
  for (int32_t place : spec.frozen) {
    run.model.tensors[static_cast<size_t>(place) % run.model.tensors.size()].trainable = false;
  }
  ShardingDescription& sharding = run.sharding;
  const bool is_default_grouping = spec.joins.empty() && !spec.root;
  if (!is_default_grouping) {
    run.model.units = GroupStages(spec, static_cast<int32_t>(run.model.stages.size()));
  }
  sharding.mode = spec.mode;
  sharding.prefetch = spec.mode == Mode::kFullShard ? spec.prefetch : Prefetch::kNotApplicable;
  sharding.layout = spec.mode == Mode::kReplicated       ? LayoutKind::kFlat
                    : spec.mode == Mode::kZero1Broadcast ? LayoutKind::kOwner
                                                         : spec.layout;
  sharding.world_size = WorldSize{spec.world_size};
  sharding.bucket_cap_bytes = int64_t{4} * spec.bucket_elements;
  sharding.grad_sync = spec.sync_last ? GradSync::kLast : GradSync::kEvery;
  sharding.broadcast_bucket_view = spec.bucket_view && spec.mode == Mode::kZero1Broadcast;
  sharding.scale_before_reduce = spec.scale_before;
  sharding.keep_unsharded_between_micro_batches =
      spec.keep_unsharded && spec.sync_last && ShardsUnits(spec.mode);
  run.optimizer.kind = spec.sgd ? OptimizerKind::kSgd : OptimizerKind::kAdamW;
  if (spec.sgd && spec.no_momentum) run.optimizer.momentum = 0;
  run.optimizer.weight_decay = spec.weight_decay_hundredths / 100.0;
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
