#include "collectives/nccl/nccl_status.h"

#include <nccl.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shardproof {

absl::Status NcclStatus(ncclResult_t result, ncclComm_t comm, absl::string_view call) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  std::string text = absl::StrCat(call, ": ", ncclGetErrorString(result));
  const char* const last = ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') absl::StrAppend(&text, "; last error: ", last);
  const bool remote = result == ncclRemoteError;
  return absl::Status(remote ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal, text);
}

}  // namespace shardproof
