// The suite's targets with a process for each rank, started by mpirun.
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/launch/launch_environment.h"
#include "invariants/suite/launched_suite.h"

namespace shardproof {
namespace {

// In one process all would pass, and say nothing about processes.
absl::Status UnderMpirun() {
  const absl::StatusOr<LaunchEnvironment> environment = ReadLaunchEnvironment(std::getenv);
  if (!environment.ok()) return environment.status();
  if (environment->launcher == Launcher::kMpirun) return absl::OkStatus();
  return absl::FailedPreconditionError("accepted: as ranks of mpirun, which this is not");
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  return shardproof::RunLaunchedSuite(
      argc, argv, {.name = "mpi_suite_test", .ready = shardproof::UnderMpirun}, nullptr);
}
