#include "collectives/mpi/mpi_status.h"

#include <mpi.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shardproof {

absl::Status MpiStatus(int code, absl::string_view call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char words[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) length = 0;
  return absl::InternalError(
      absl::StrCat("MPI: ", call, " returned ", code, " (", absl::string_view(words, length), ")"));
}

}  // namespace shardproof
