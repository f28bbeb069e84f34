// From the return values of NCCL to absl::Status that names the call.
#ifndef COLLECTIVES_NCCL_NCCL_STATUS_H_
#define COLLECTIVES_NCCL_NCCL_STATUS_H_

#include <nccl.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shardproof {

// OK for ncclSuccess, and for ncclInProgress: a nonblocking communicator says so when all is well
// so far. Else Unavailable for what another rank has caused (ncclRemoteError), Internal for the
// rest; with `call`, NCCL's words for the result, and its last error. `comm` may be null.
absl::Status NcclStatus(ncclResult_t result, ncclComm_t comm, absl::string_view call);

}  // namespace shardproof

#endif  // COLLECTIVES_NCCL_NCCL_STATUS_H_
