#include "collectives/ledger.h"

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "collectives/forwarding_communicator.h"
#include "collectives/traffic_model.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

class RecordingCommunicator : public ForwardingCommunicator {
 public:
  RecordingCommunicator(Communicator* inner, std::vector<LedgerEntry>* entries)
      : ForwardingCommunicator(inner), group_(inner->group()), entries_(entries) {}

  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    SHARDPROOF_ASSIGN_OR_RETURN(const CollectiveHandle handle, inner().Start(call));
    const int64_t payload_bytes = PayloadBytes(call.kind, call.dtype, call.elements);
    entries_->push_back({.kind = call.kind,
                         .dtype = call.dtype,
                         .elements = call.elements,
                         .group = group_,
                         .root = call.root,
                         .label = call.label,
                         .payload_bytes = payload_bytes,
                         .bus_bytes = BusBytes(call.kind, payload_bytes, group_.count)});
    return handle;
  }

 private:
  const Group group_;
  std::vector<LedgerEntry>* const entries_;
};

}  // namespace

std::unique_ptr<Communicator> Ledger::Record(Communicator* inner) {
  return std::make_unique<RecordingCommunicator>(inner, &entries_[inner->rank().value]);
}

void Ledger::Clear() {
  for (std::vector<LedgerEntry>& entries : entries_) entries.clear();
}

void LedgerSummary::Add(const LedgerEntry& entry) {
  TrafficTotals& totals = totals_[static_cast<size_t>(entry.kind)];
  ++totals.count;
  totals.payload_bytes += entry.payload_bytes;
  totals.bus_bytes += entry.bus_bytes;
}

LedgerSummary Summarize(absl::Span<const LedgerEntry> entries) {
  LedgerSummary summary;
  for (const LedgerEntry& entry : entries) summary.Add(entry);
  return summary;
}

}  // namespace shardproof
