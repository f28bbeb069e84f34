// Where the elements of every tensor lie: which tensors share a buffer, how the buffer is
// cut into shards, and which rank owns what. The rules are in closed_forms.h, section
// LAYOUT; this file is their arithmetic. Include closed_forms.h.
//
// Everything is computed once, in time linear in tensors and pieces (a piece is the part of
// one tensor on one rank), so that asking for a rank or an element costs nothing later.
#ifndef INVARIANTS_CLOSED_FORMS_LAYOUT_FORMS_H_
#define INVARIANTS_CLOSED_FORMS_LAYOUT_FORMS_H_

#include <cstdint>
#include <vector>

#include "invariants/run_description/run_description.h"

namespace shardproof {

// Tensors that share a buffer: a unit, or a bucket.
struct ExpectedSet {
  std::vector<int32_t> tensors;
  int64_t elements = 0;            // of all of them, without padding
  int64_t trainable_elements = 0;  // of those with a gradient
  int64_t shard = 0;               // elements of one shard, padding included
  int32_t shards = 1;
  int64_t full() const { return shard * shards; }
};

// What one rank's shards hold, over all sets, without padding.
struct Holding {
  int64_t elements = 0;
  int64_t trainable_elements = 0;
  int64_t trainable_tensors = 0;  // with at least one element here
};

struct LayoutTotals {
  int64_t elements = 0;
  int64_t trainable_elements = 0;
  int64_t shards = 0;            // padding included
  int64_t trainable_shards = 0;  // of the sets with a trainable tensor
};

class LayoutForms {
 public:
  explicit LayoutForms(const RunDescription& run);

  const std::vector<ExpectedSet>& sets() const { return sets_; }
  // -1: a tensor of a bucket mode that is in no bucket: frozen, or without elements.
  int32_t SetOf(int32_t tensor) const { return set_of_[tensor]; }
  int64_t elements(int32_t tensor) const { return elements_[tensor]; }
  // N, the ranks that share one copy of the state.
  int32_t ranks() const { return ranks_; }
  // Of rank `index` of the sharding group. Replicated: of every rank, the whole model.
  const Holding& holding(int32_t index) const { return holdings_[index]; }
  // Sums over the model, and over the shards of one rank (equal on all ranks).
  const LayoutTotals& totals() const { return totals_; }
  // The index within the sharding group of the rank that owns the element; -1: every rank. A
  // tensor without elements has none to ask for.
  int32_t Owner(int32_t tensor, int64_t element) const;

 private:
  void BuildUnits();
  void BuildBuckets(const ShardingDescription& sharding);
  void Append(ExpectedSet* set, int32_t tensor) const;
  // Cuts `set` into its shards and adds its pieces to the holdings.
  void Cut(ExpectedSet* set);
  void CutFlat(ExpectedSet* set);
  void CutRows(ExpectedSet* set);
  void CutOwner(ExpectedSet* set);
  void AddPiece(int32_t index, int32_t tensor, int64_t count);

  // What Owner needs to know of a tensor; meaning depends on the layout.
  struct Place {
    int64_t start = 0;  // flat: first element in the full buffer; owner: the rank
    int64_t cut = 0;    // flat: elements of a shard; rows: elements of a rank's rows
  };

  const ModelDescription& model_;
  const Mode mode_;
  const int32_t ranks_;
  LayoutKind layout_;
  int64_t alignment_ = 1;  // of tensors in a flat buffer, in elements
  std::vector<int64_t> elements_;
  std::vector<int32_t> set_of_;
  std::vector<ExpectedSet> sets_;
  std::vector<Place> places_;
  std::vector<Holding> holdings_;
  LayoutTotals totals_;
};

}  // namespace shardproof

#endif  // INVARIANTS_CLOSED_FORMS_LAYOUT_FORMS_H_
