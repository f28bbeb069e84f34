// One rank's end of one group over NCCL. For nccl_world.cc only.
#ifndef COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
#define COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/device_calls.h"
#include "collectives/device_world.h"
#include "collectives/nccl/nccl_connection.h"
#include "collectives/roll_call.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

class NcclCommunicator final : public Communicator {
 public:
  struct Options {
    Rank rank;
    Group group;
    int device = 0;
    DeviceStream stream = nullptr;
    absl::Duration timeout;  // of Start
  };

  // `connection` and `roll_call` outlive this object.
  NcclCommunicator(const Options& options, NcclConnection* connection, RollCall* roll_call)
      : options_(options), connection_(connection), roll_call_(roll_call) {}

  Rank rank() const override { return options_.rank; }
  Group group() const override { return options_.group; }
  bool adds_in_rank_order() const override { return alone(); }
  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override;
  absl::StatusOr<bool> Poll(CollectiveHandle handle) override;
  absl::Status Wait(CollectiveHandle handle, absl::Duration timeout) override;

 private:
  bool alone() const { return options_.group.count == 1; }
  absl::Status CopyAlone(const CollectiveCall& call);
  absl::Status EnqueueWithOthers(const CollectiveCall& call, int64_t position);
  absl::Status Explain(const absl::Status& cause, int64_t position);

  const Options options_;
  NcclConnection* const connection_;
  RollCall* const roll_call_;
  DeviceCalls calls_;
};

}  // namespace shardproof

#endif  // COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
