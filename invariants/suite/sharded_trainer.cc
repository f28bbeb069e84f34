#include "invariants/suite/sharded_trainer.h"

#include <algorithm>
#include <utility>

namespace shardproof {

int32_t StepLog::AddBuffer(const BufferInfo& buffer, bool alive) {
  const int32_t id = static_cast<int32_t>(events_.buffers.size());
  events_.buffers.push_back(buffer);
  alive_.push_back(alive);
  // One that is declared in the middle of a step was there when the step began, as far as
  // anybody can tell.
  if (alive) events_.live_before.push_back(id);
  return id;
}

void StepLog::Label(Purpose purpose, Operation operation) {
  told_ = true;
  labels_lost_ |= label_.has_value();
  label_ = PendingLabel{purpose, std::move(operation)};
}

void StepLog::Append(EventKind kind, Operation operation) {
  told_ = true;
  Event event;
  event.kind = kind;
  AddWaits(event);
  last_local_ = AddEvent(event, operation);
}

// The program of a rank is one sequence: what it does itself comes after everything that it
// has waited for.
void StepLog::AddWaits(Event& event) {
  event.first_wait = static_cast<uint32_t>(events_.waits.size());
  event.wait_count = static_cast<uint32_t>(done_.size());
  events_.waits.insert(events_.waits.end(), done_.begin(), done_.end());
  done_.clear();
}

int32_t StepLog::CollectiveStarted(const LedgerEntry& call) {
  Event event;
  event.kind = EventKind::kCollective;
  event.stream = StreamId::kCommunication;
  event.collective = call.kind;
  event.dtype = call.dtype;
  event.elements = call.elements;
  event.group = call.group;
  event.completed = false;
  if (call.kind == CollectiveKind::kBroadcast) event.root = call.root.value;
  Operation operation;
  if (label_.has_value()) {
    event.purpose = label_->purpose;
    operation = std::move(label_->operation);
    label_.reset();
  }
  // It was started after what the rank did before, and runs after earlier collectives.
  event.first_wait = static_cast<uint32_t>(events_.waits.size());
  if (last_local_ >= 0) {
    event.wait_count = 1;
    events_.waits.push_back(last_local_);
  }
  return AddEvent(event, operation);
}

void StepLog::CollectiveDone(int32_t event) {
  if (event < 0 || static_cast<size_t>(event) >= events_.events.size()) return;
  if (events_.events[event].completed) return;
  events_.events[event].completed = true;
  done_.push_back(event);
}

int32_t StepLog::AddEvent(Event event, const Operation& operation) {
  event.phase = operation.phase;
  event.micro_batch = operation.micro_batch;
  event.unit = operation.unit;
  event.bucket = operation.bucket;
  event.tensor = operation.tensor;
  event.stage = operation.stage;
  event.stage_count = operation.stage_count;
  AddAccesses(operation, event);
  events_.events.push_back(event);
  return static_cast<int32_t>(events_.events.size()) - 1;
}

void StepLog::AddAccesses(const Operation& operation, Event& event) {
  event.first_access = static_cast<uint32_t>(events_.accesses.size());
  event.access_count = static_cast<uint32_t>(operation.accesses.size());
  events_.accesses.insert(events_.accesses.end(), operation.accesses.begin(),
                          operation.accesses.end());
  std::stable_sort(events_.accesses.begin() + event.first_access, events_.accesses.end(),
                   [](const Access& a, const Access& b) { return a.kind < b.kind; });
  for (const Access& access : operation.accesses) {
    if (access.buffer < 0 || static_cast<size_t>(access.buffer) >= alive_.size()) continue;
    if (access.kind == AccessKind::kAllocate) alive_[access.buffer] = true;
    if (access.kind == AccessKind::kFree) alive_[access.buffer] = false;
  }
}

void StepLog::BeginStep() {
  events_.ranks = {rank_.value, 1, 1};
  events_.events.clear();
  events_.waits.clear();
  events_.accesses.clear();
  events_.live_before.clear();
  for (size_t buffer = 0; buffer < alive_.size(); ++buffer) {
    if (alive_[buffer]) events_.live_before.push_back(static_cast<int32_t>(buffer));
  }
  label_.reset();
  labels_lost_ = false;
  told_ = false;
  last_local_ = -1;
  done_.clear();
}

}  // namespace shardproof
