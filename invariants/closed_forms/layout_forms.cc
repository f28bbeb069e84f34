#include "invariants/closed_forms/layout_forms.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace shardproof {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

LayoutForms::LayoutForms(const RunDescription& run)
    : model_(run.model),
      mode_(run.sharding.mode),
      ranks_(ShardCount(run.sharding)),
      layout_(run.sharding.layout),
      set_of_(run.model.tensors.size(), -1),
      places_(run.model.tensors.size()),
      holdings_(ranks_) {
  if (layout_ == LayoutKind::kFlatAligned) {
    alignment_ = 16 / DtypeBytes(run.sharding.precision.master);
  }
  elements_.reserve(model_.tensors.size());
  for (const TensorSpec& tensor : model_.tensors) elements_.push_back(Elements(tensor));
  if (ShardsUnits(mode_)) {
    BuildUnits();
  } else {
    BuildBuckets(run.sharding);
  }
  for (size_t t = 0; t < model_.tensors.size(); ++t) {
    totals_.elements += elements_[t];
    if (model_.tensors[t].trainable) totals_.trainable_elements += elements_[t];
  }
  for (const ExpectedSet& set : sets_) {
    totals_.shards += set.shard;
    if (set.trainable_elements > 0) totals_.trainable_shards += set.shard;
  }
}

void LayoutForms::Append(ExpectedSet* set, int32_t tensor) const {
  set->tensors.push_back(tensor);
  set->elements += elements_[tensor];
  if (model_.tensors[tensor].trainable) set->trainable_elements += elements_[tensor];
}

// By stage, not by unit: a root unit holds a late stage too, and a tensor that it shares with a
// unit between belongs to whoever uses it first.
void LayoutForms::BuildUnits() {
  const std::vector<int32_t> unit_of_stage = UnitOfStage(model_);
  sets_.resize(model_.units.size());
  for (size_t stage = 0; stage < model_.stages.size(); ++stage) {
    const int32_t unit = unit_of_stage[stage];
    for (const int32_t tensor : model_.stages[stage].tensors) {
      if (set_of_[tensor] >= 0) continue;  // tied: first use counts
      set_of_[tensor] = unit;
      Append(&sets_[unit], tensor);
    }
  }
  for (ExpectedSet& set : sets_) Cut(&set);
}

void LayoutForms::BuildBuckets(const ShardingDescription& sharding) {
  const int64_t element_bytes = DtypeBytes(sharding.precision.reduce);
  bool open = false;
  for (int32_t t = static_cast<int32_t>(model_.tensors.size()) - 1; t >= 0; --t) {
    if (!model_.tensors[t].trainable || elements_[t] == 0) continue;
    if (!open) sets_.emplace_back();
    Append(&sets_.back(), t);
    set_of_[t] = static_cast<int32_t>(sets_.size()) - 1;
    open = sets_.back().elements * element_bytes < sharding.bucket_cap_bytes;
  }
  if (mode_ == Mode::kZero1AllGather || mode_ == Mode::kZero2) {
    for (ExpectedSet& set : sets_) Cut(&set);
    return;
  }
  // Gradients stay whole: one shard, no padding.
  for (ExpectedSet& set : sets_) set.shard = set.elements;
  ExpectedSet all;
  for (int32_t t = 0; t < static_cast<int32_t>(model_.tensors.size()); ++t) {
    if (model_.tensors[t].trainable) Append(&all, t);
  }
  if (mode_ == Mode::kZero1Broadcast) {
    layout_ = LayoutKind::kOwner;
    all.shards = ranks_;
    CutOwner(&all);
  } else {
    for (const int32_t tensor : all.tensors) AddPiece(0, tensor, elements_[tensor]);
    std::fill(holdings_.begin(), holdings_.end(), Holding(holdings_[0]));
  }
}

void LayoutForms::Cut(ExpectedSet* set) {
  set->shards = ranks_;
  switch (layout_) {
    case LayoutKind::kFlat:
    case LayoutKind::kFlatAligned:
      return CutFlat(set);
    case LayoutKind::kRows:
      return CutRows(set);
    case LayoutKind::kOwner:
      return CutOwner(set);
  }
}

void LayoutForms::CutFlat(ExpectedSet* set) {
  int64_t end = 0;
  for (const int32_t tensor : set->tensors) {
    places_[tensor].start = CeilDiv(end, alignment_) * alignment_;
    end = places_[tensor].start + elements_[tensor];
  }
  set->shard = CeilDiv(end, ranks_);
  for (const int32_t tensor : set->tensors) {
    if (elements_[tensor] == 0) continue;  // lies nowhere; the shard may have no elements either
    places_[tensor].cut = set->shard;
    int64_t first = places_[tensor].start;
    const int64_t last = first + elements_[tensor];
    for (int64_t rank = first / set->shard; first < last; ++rank) {
      const int64_t stop = std::min(last, (rank + 1) * set->shard);
      AddPiece(static_cast<int32_t>(rank), tensor, stop - first);
      first = stop;
    }
  }
}

void LayoutForms::CutRows(ExpectedSet* set) {
  for (const int32_t tensor : set->tensors) {
    if (elements_[tensor] == 0) continue;  // it may have no rows to divide by
    const std::vector<int64_t>& shape = model_.tensors[tensor].shape;
    const int64_t rows = shape.empty() ? 1 : shape[0];
    const int64_t part = CeilDiv(rows, ranks_) * (elements_[tensor] / rows);
    places_[tensor].cut = part;
    set->shard += part;
    int64_t left = elements_[tensor];
    for (int32_t rank = 0; left > 0; ++rank, left -= part) {
      AddPiece(rank, tensor, std::min(left, part));
    }
  }
}

void LayoutForms::CutOwner(ExpectedSet* set) {
  std::vector<int32_t> largest_first = set->tensors;
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](int32_t a, int32_t b) { return elements_[a] > elements_[b]; });
  using Load = std::pair<int64_t, int32_t>;  // elements so far, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<Load>> lightest;
  for (int32_t rank = 0; rank < ranks_; ++rank) lightest.push({0, rank});
  for (const int32_t tensor : largest_first) {
    const auto [load, rank] = lightest.top();
    lightest.pop();
    lightest.push({load + elements_[tensor], rank});
    set->shard = std::max(set->shard, load + elements_[tensor]);
    places_[tensor].start = rank;
    AddPiece(rank, tensor, elements_[tensor]);
  }
}

void LayoutForms::AddPiece(int32_t index, int32_t tensor, int64_t count) {
  if (count == 0) return;
  Holding& holding = holdings_[index];
  holding.elements += count;
  if (!model_.tensors[tensor].trainable) return;
  holding.trainable_elements += count;
  ++holding.trainable_tensors;
}

int32_t LayoutForms::Owner(int32_t tensor, int64_t element) const {
  if (mode_ == Mode::kReplicated || set_of_[tensor] < 0) return -1;
  const Place& place = places_[tensor];
  switch (layout_) {
    case LayoutKind::kFlat:
    case LayoutKind::kFlatAligned:
      return static_cast<int32_t>((place.start + element) / place.cut);
    case LayoutKind::kRows:
      return static_cast<int32_t>(element / place.cut);
    case LayoutKind::kOwner:
      return static_cast<int32_t>(place.start);
  }
  return -1;
}

}  // namespace shardproof
