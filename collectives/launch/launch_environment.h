// Who launched this process, and which rank of what job it is: from environment variables.
//
//   none       no launcher: all ranks are in this process
//   mpirun     OpenMPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and, if
//              set, TORCHELASTIC_RUN_ID (docs.pytorch.org, Torch Distributed Elastic). The port is
//              held by torchrun's agent: ours are the ones after it.
//
// A shell exports some of torchrun's names for other programs too: RANK alone, WORLD_SIZE alone,
// or MASTER_ADDR and MASTER_PORT without the others are no launch. Anything more of the set is
// one, and then it must be whole. OpenMPI's variables come first: torchrun's beside them may be
// part of the set, if they agree.
#ifndef COLLECTIVES_LAUNCH_LAUNCH_ENVIRONMENT_H_
#define COLLECTIVES_LAUNCH_LAUNCH_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

enum class Launcher : uint8_t { kNone, kMpirun, kTorchrun };
absl::string_view Name(Launcher launcher);

struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  Rank rank;
  WorldSize world_size = WorldSize{1};
  int32_t local_rank = 0;  // among the ranks of this machine: the ordinal of its GPU
  int32_t local_world_size = 1;
  std::string master_address;  // torchrun
  int32_t master_port = 0;     // torchrun
  std::string run_id;          // torchrun
};

// A variable's value, or null; std::getenv serves.
using GetEnvironment = std::function<const char*(const char* name)>;

// Sizes are 1 or more, a local size is not above the world size, and MASTER_PORT is below 65535,
// so that a port comes after it.
// InvalidArgument that names the variable, its value and what is accepted: one that is missing
// while others of its launcher are set, that is no number or out of range (rank below 0 or not
// below the size), or variables of both launchers at once that disagree.
absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(const GetEnvironment& get);

}  // namespace shardproof

#endif  // COLLECTIVES_LAUNCH_LAUNCH_ENVIRONMENT_H_
