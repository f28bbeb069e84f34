// MPI's return codes as absl::Status.
#ifndef COLLECTIVES_MPI_MPI_STATUS_H_
#define COLLECTIVES_MPI_MPI_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shardproof {

// OK for MPI_SUCCESS, else Internal with MPI's words; `call` is the expression that returned it.
absl::Status MpiStatus(int code, absl::string_view call);

#define SHARDPROOF_RETURN_IF_MPI_ERROR(call)                                                    \
  do {                                                                                          \
    if (absl::Status mpi_status_ = ::shardproof::MpiStatus((call), #call); !mpi_status_.ok()) { \
      return mpi_status_;                                                                       \
    }                                                                                           \
  } while (false)

}  // namespace shardproof

#endif  // COLLECTIVES_MPI_MPI_STATUS_H_
