#include "trainer/sharding/placement.h"

#include <algorithm>
#include <utility>

namespace shardproof {
namespace {

bool ShardsBuckets(Mode mode) { return mode == Mode::kZero1AllGather || mode == Mode::kZero2; }

class PlacementBuilder {
 public:
  explicit PlacementBuilder(const RunDescription& run) : run_(run) {
    const size_t tensors = run.model.tensors.size();
    placement_.parameter_set.assign(tensors, -1);
    placement_.gradient_set.assign(tensors, -1);
    placement_.moment_set.assign(tensors, -1);
    placement_.gradient_offset.assign(tensors, 0);
    placement_.moment_offset.assign(tensors, 0);
    placement_.counts_steps = run.optimizer.kind == OptimizerKind::kAdamW;
    placement_.moments_per_element =
        placement_.counts_steps ? 2 : (run.optimizer.momentum != 0 ? 1 : 0);
  }

  // Adds a set over `shards` ranks and returns its index.
  int32_t Add(std::vector<int32_t> tensors, LayoutKind kind, int32_t shards) {
    TensorSet set;
    set.layout = MakeLayout(run_.model, tensors, kind, shards,
                            DtypeBytes(run_.sharding.precision.parameter));
    for (int32_t tensor : tensors) {
      const int64_t elements = Elements(run_.model.tensors[tensor]);
      set.tensor_elements += elements;
      if (run_.model.tensors[tensor].trainable) set.trainable_elements += elements;
    }
    set.trainable = set.trainable_elements > 0;
    set.tensors = std::move(tensors);
    placement_.sets.push_back(std::move(set));
    return static_cast<int32_t>(placement_.sets.size()) - 1;
  }

  void PlaceParameters(int32_t index, Keeps keeps) {
    TensorSet& set = placement_.sets[index];
    if (set.tensor_elements > 0) set.parameter = keeps;
    for (int32_t tensor : set.tensors) placement_.parameter_set[tensor] = index;
  }
  void PlaceGradients(int32_t index, Keeps keeps) {
    if (placement_.sets[index].trainable) placement_.sets[index].gradient = keeps;
    PlaceTrainable(index, placement_.gradient_set, placement_.gradient_offset);
  }
  void PlaceMoments(int32_t index) {
    placement_.sets[index].moments =
        placement_.sets[index].trainable && placement_.moments_per_element > 0;
    PlaceTrainable(index, placement_.moment_set, placement_.moment_offset);
  }

  TensorSet& set(int32_t index) { return placement_.sets[index]; }
  Placement Take() { return std::move(placement_); }

 private:
  void PlaceTrainable(int32_t set, std::vector<int32_t>& map, std::vector<int64_t>& offsets) {
    const FlatLayout& layout = placement_.sets[set].layout;
    for (const Segment& segment : layout.segments) {
      if (segment.tensor < 0 || !run_.model.tensors[segment.tensor].trainable) continue;
      map[segment.tensor] = set;
      if (segment.first == 0) offsets[segment.tensor] = layout.offset(segment);
    }
  }

  const RunDescription& run_;
  Placement placement_;
};

void PlaceUnits(const RunDescription& run, PlacementBuilder& builder) {
  std::vector<std::vector<int32_t>> tensors = TensorsOfUnits(run.model);
  for (size_t unit = 0; unit < tensors.size(); ++unit) {
    const int32_t set =
        builder.Add(std::move(tensors[unit]), run.sharding.layout, ShardCount(run.sharding));
    builder.set(set).unit = static_cast<int32_t>(unit);
    builder.PlaceParameters(set, Keeps::kShard);
    builder.PlaceGradients(set, Keeps::kShard);
    builder.PlaceMoments(set);
  }
}

// One set an owning rank: its whole tensors in registration order, not cut and not padded.
void PlaceOwners(const RunDescription& run, PlacementBuilder& builder) {
  std::vector<int32_t> trainable;
  for (size_t tensor = 0; tensor < run.model.tensors.size(); ++tensor) {
    const TensorSpec& spec = run.model.tensors[tensor];
    if (spec.trainable && Elements(spec) > 0) trainable.push_back(static_cast<int32_t>(tensor));
  }
  const int32_t ranks = ShardCount(run.sharding);
  const std::vector<int32_t> owners = AssignOwners(run.model, trainable, ranks);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<int32_t> owned;
    for (size_t i = 0; i < trainable.size(); ++i) {
      if (owners[i] == rank) owned.push_back(trainable[i]);
    }
    if (owned.empty()) continue;
    const int32_t set = builder.Add(std::move(owned), LayoutKind::kFlat, /*shards=*/1);
    builder.set(set).owner = rank;
    builder.PlaceParameters(set, Keeps::kWhole);
    builder.PlaceMoments(set);
  }
}

void PlaceBuckets(const RunDescription& run, PlacementBuilder& builder) {
  const Mode mode = run.sharding.mode;
  int32_t bucket = 0;
  for (std::vector<int32_t>& tensors : MakeBuckets(run.model, run.sharding.bucket_cap_bytes)) {
    const int32_t set =
        ShardsBuckets(mode)
            ? builder.Add(std::move(tensors), run.sharding.layout, ShardCount(run.sharding))
            : builder.Add(std::move(tensors), LayoutKind::kFlat, /*shards=*/1);
    builder.set(set).bucket = bucket++;
    builder.PlaceGradients(set, mode == Mode::kZero2 ? Keeps::kShard : Keeps::kWhole);
    if (mode == Mode::kZero1Broadcast) continue;
    builder.PlaceParameters(set, Keeps::kWhole);
    builder.PlaceMoments(set);
  }
  if (mode == Mode::kZero1Broadcast) PlaceOwners(run, builder);
  std::vector<int32_t> frozen;
  for (size_t tensor = 0; tensor < run.model.tensors.size(); ++tensor) {
    const TensorSpec& spec = run.model.tensors[tensor];
    if (!spec.trainable && Elements(spec) > 0) frozen.push_back(static_cast<int32_t>(tensor));
  }
  if (!frozen.empty()) {
    builder.PlaceParameters(builder.Add(std::move(frozen), LayoutKind::kFlat, /*shards=*/1),
                            Keeps::kWhole);
  }
}

}  // namespace

Placement MakePlacement(const RunDescription& run) {
  PlacementBuilder builder(run);
  if (ShardsUnits(run.sharding.mode)) {
    PlaceUnits(run, builder);
  } else {
    PlaceBuckets(run, builder);
  }
  return builder.Take();
}

int32_t ShardOf(const TensorSet& set, Rank rank) { return set.layout.shards == 1 ? 0 : rank.value; }

bool KeepsMoments(const TensorSet& set, Rank rank) {
  return set.moments && (set.owner < 0 || set.owner == rank.value);
}

int64_t TensorsWithMoments(const Placement& placement, Rank rank) {
  int64_t tensors = 0;
  for (const TensorSet& set : placement.sets) {
    if (!KeepsMoments(set, rank)) continue;
    const bool all_trainable = set.trainable_elements == set.tensor_elements;
    int32_t counted = -1;
    for (const Segment& segment : set.layout.shard(ShardOf(set, rank))) {
      if (segment.tensor < 0 || segment.tensor == counted) continue;
      if (!all_trainable && placement.moment_set[segment.tensor] < 0) continue;
      counted = segment.tensor;
      ++tensors;
    }
  }
  return tensors;
}

void AppendPiece(const Piece& piece, std::vector<Piece>& pieces) {
  if (!pieces.empty() && pieces.back().first + pieces.back().count == piece.first &&
      pieces.back().offset + pieces.back().count == piece.offset) {
    pieces.back().count += piece.count;
  } else {
    pieces.push_back(piece);
  }
}

}  // namespace shardproof
