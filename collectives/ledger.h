// Ledger: what every rank communicated, call by call.
//
//   Ledger ledger(WorldSize{4});
//   std::unique_ptr<Communicator> recorded = ledger.Record(communicator);
//   ... the rank works with `recorded` ...
//   ledger.entries(Rank{2});            // what rank 2 started, in order
//   Summarize(ledger.entries(Rank{2}))  // counts and bytes by kind
#ifndef COLLECTIVES_LEDGER_H_
#define COLLECTIVES_LEDGER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// One started call. What it lacks of a CollectiveCall are the buffers, which it does not keep.
struct LedgerEntry {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  int64_t elements = 0;
  Group group;
  Rank root;  // of a broadcast
  int32_t label = -1;
  int64_t payload_bytes = 0;  // traffic_model.h
  int64_t bus_bytes = 0;

  bool operator==(const LedgerEntry&) const = default;
};

// The entries of one rank are in the order in which it started them, over all its groups.
// Different ranks may record at the same time; one rank's calls come one at a time.
class Ledger {
 public:
  explicit Ledger(WorldSize size) : entries_(size.value) {}
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // A communicator that passes everything on to `inner` and notes each call that `inner` has
  // accepted: a Start that returned an error started nothing. The caller owns the result; this
  // ledger and `inner` outlive it. The rank of `inner` is one of the ledger's world. A group of
  // one rank is recorded as any other.
  std::unique_ptr<Communicator> Record(Communicator* inner);

  absl::Span<const LedgerEntry> entries(Rank rank) const { return entries_[rank.value]; }

  // Forgets all entries and keeps their memory: the next step records without allocating.
  void Clear();

 private:
  std::vector<std::vector<LedgerEntry>> entries_;  // [rank], never resized
};

struct TrafficTotals {
  int64_t count = 0;
  int64_t payload_bytes = 0;
  int64_t bus_bytes = 0;

  bool operator==(const TrafficTotals&) const = default;
};

// The totals of each kind.
class LedgerSummary {
 public:
  const TrafficTotals& of(CollectiveKind kind) const { return totals_[static_cast<size_t>(kind)]; }
  void Add(const LedgerEntry& entry);

  bool operator==(const LedgerSummary&) const = default;

 private:
  std::array<TrafficTotals, kCollectiveKindCount> totals_;
};

LedgerSummary Summarize(absl::Span<const LedgerEntry> entries);

}  // namespace shardproof

#endif  // COLLECTIVES_LEDGER_H_
