// ForwardingCommunicator: the base of decorators. It passes every call on to another
// communicator, so that a decorator overrides the one function it changes:
//
//   class DropsLastElement : public ForwardingCommunicator {
//     using ForwardingCommunicator::ForwardingCommunicator;
//     absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override;
//   };
#ifndef COLLECTIVES_FORWARDING_COMMUNICATOR_H_
#define COLLECTIVES_FORWARDING_COMMUNICATOR_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

class ForwardingCommunicator : public Communicator {
 public:
  // `inner` stays the caller's and outlives this object. Handles are those of `inner`.
  explicit ForwardingCommunicator(Communicator* inner) : inner_(inner) {}

  Rank rank() const override { return inner_->rank(); }
  Group group() const override { return inner_->group(); }
  bool adds_in_rank_order() const override { return inner_->adds_in_rank_order(); }
  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    return inner_->Start(call);
  }
  absl::StatusOr<bool> Poll(CollectiveHandle handle) override { return inner_->Poll(handle); }
  absl::Status Wait(CollectiveHandle handle, absl::Duration timeout) override {
    return inner_->Wait(handle, timeout);
  }

 protected:
  Communicator& inner() { return *inner_; }

 private:
  Communicator* const inner_;
};

}  // namespace shardproof

#endif  // COLLECTIVES_FORWARDING_COMMUNICATOR_H_
