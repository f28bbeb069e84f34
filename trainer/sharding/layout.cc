#include "trainer/sharding/layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardproof {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Collects segments shard by shard and fills what is left of each with padding.
class ShardWriter {
 public:
  ShardWriter(int32_t shards, int64_t shard_elements, size_t tensors) {
    layout_.segments.reserve(static_cast<size_t>(shards) + 2 * tensors);
    layout_.first_segment_of_rank.reserve(static_cast<size_t>(shards) + 1);
    layout_.shards = shards;
    layout_.shard_elements = shard_elements;
    layout_.first_segment_of_rank.push_back(0);
  }
  void Add(int32_t tensor, int64_t first, int64_t count) {
    if (count == 0) return;
    layout_.segments.push_back({tensor, first, count, rank_, offset_});
    offset_ += count;
  }
  void Pad(int64_t count) { Add(-1, 0, count); }
  // Pads the rest of this rank's shard and turns to the next rank.
  void EndShard() {
    Pad(room());
    layout_.first_segment_of_rank.push_back(static_cast<int32_t>(layout_.segments.size()));
    ++rank_;
    offset_ = 0;
  }
  int64_t room() const { return layout_.shard_elements - offset_; }
  // Ends the shards that are still open, so that every rank has one.
  FlatLayout Take() {
    while (rank_ < layout_.shards) EndShard();
    return std::move(layout_);
  }

 private:
  FlatLayout layout_;
  int32_t rank_ = 0;
  int64_t offset_ = 0;
};

// Tensors back to back, each start rounded up to `alignment` elements, cut every
// shard_elements; a tensor or a gap may be cut anywhere.
FlatLayout Flat(const ModelDescription& model, absl::Span<const int32_t> tensors, int32_t shards,
                int64_t alignment) {
  int64_t total = 0;
  for (int32_t tensor : tensors) {
    total = RoundUp(total, alignment) + Elements(model.tensors[tensor]);
  }
  ShardWriter writer(shards, (total + shards - 1) / shards, tensors.size());
  int64_t position = 0;
  const auto emit = [&](int32_t tensor, int64_t count) {
    position += count;
    for (int64_t first = 0; first < count;) {
      if (writer.room() == 0) writer.EndShard();
      const int64_t part = std::min(count - first, writer.room());
      writer.Add(tensor, tensor < 0 ? 0 : first, part);
      first += part;
    }
  };
  for (int32_t tensor : tensors) {
    emit(-1, RoundUp(position, alignment) - position);
    emit(tensor, Elements(model.tensors[tensor]));
  }
  return writer.Take();
}

FlatLayout Rows(const ModelDescription& model, absl::Span<const int32_t> tensors, int32_t shards) {
  int64_t shard_elements = 0;
  for (int32_t tensor : tensors) {
    const int64_t rows = std::max<int64_t>(model.tensors[tensor].shape[0], 1);
    const int64_t row_elements = Elements(model.tensors[tensor]) / rows;
    shard_elements += (rows + shards - 1) / shards * row_elements;
  }
  ShardWriter writer(shards, shard_elements, tensors.size() * shards);
  for (int32_t rank = 0; rank < shards; ++rank) {
    for (int32_t tensor : tensors) {
      const int64_t rows = std::max<int64_t>(model.tensors[tensor].shape[0], 1);
      const int64_t row_elements = Elements(model.tensors[tensor]) / rows;
      const int64_t rows_per_rank = (rows + shards - 1) / shards;
      const int64_t first_row = std::min<int64_t>(rank * rows_per_rank, rows);
      const int64_t row_count = std::min(rows_per_rank, rows - first_row);
      writer.Add(tensor, first_row * row_elements, row_count * row_elements);
      writer.Pad((rows_per_rank - row_count) * row_elements);
    }
    writer.EndShard();
  }
  return writer.Take();
}

FlatLayout Owner(const ModelDescription& model, absl::Span<const int32_t> tensors, int32_t shards) {
  const std::vector<int32_t> owners = AssignOwners(model, tensors, shards);
  std::vector<int64_t> load(shards, 0);
  for (size_t i = 0; i < tensors.size(); ++i) {
    load[owners[i]] += Elements(model.tensors[tensors[i]]);
  }
  ShardWriter writer(shards, *std::max_element(load.begin(), load.end()), tensors.size());
  for (int32_t rank = 0; rank < shards; ++rank) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (owners[i] == rank) writer.Add(tensors[i], 0, Elements(model.tensors[tensors[i]]));
    }
    writer.EndShard();
  }
  return writer.Take();
}

}  // namespace

FlatLayout MakeLayout(const ModelDescription& model, absl::Span<const int32_t> tensors,
                      LayoutKind kind, int32_t shards, int64_t element_bytes) {
  switch (kind) {
    case LayoutKind::kFlat:
      return Flat(model, tensors, shards, /*alignment=*/1);
    case LayoutKind::kFlatAligned:
      return Flat(model, tensors, shards, std::max<int64_t>(1, 16 / element_bytes));
    case LayoutKind::kRows:
      return Rows(model, tensors, shards);
    case LayoutKind::kOwner:
      return Owner(model, tensors, shards);
  }
  return {};
}

std::vector<int32_t> AssignOwners(const ModelDescription& model, absl::Span<const int32_t> tensors,
                                  int32_t ranks) {
  std::vector<int32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return Elements(model.tensors[tensors[a]]) > Elements(model.tensors[tensors[b]]);
  });
  std::vector<int64_t> load(ranks, 0);
  std::vector<int32_t> owners(tensors.size());
  for (int32_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owners[i] = static_cast<int32_t>(least - load.begin());
    *least += Elements(model.tensors[tensors[i]]);
  }
  return owners;
}

std::vector<std::vector<int32_t>> MakeBuckets(const ModelDescription& model, int64_t cap_bytes) {
  std::vector<std::vector<int32_t>> buckets;
  int64_t open_bytes = cap_bytes;  // full, so that the first tensor opens a bucket
  for (int32_t tensor = static_cast<int32_t>(model.tensors.size()) - 1; tensor >= 0; --tensor) {
    if (!model.tensors[tensor].trainable || Elements(model.tensors[tensor]) == 0) continue;
    if (open_bytes >= cap_bytes) {
      buckets.emplace_back();
      open_bytes = 0;
    }
    buckets.back().push_back(tensor);
    open_bytes += Elements(model.tensors[tensor]) * DtypeBytes(Dtype::kFloat32);
  }
  return buckets;
}

}  // namespace shardproof
