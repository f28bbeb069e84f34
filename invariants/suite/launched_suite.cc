#include "invariants/suite/launched_suite.h"

#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/launch/launch_environment.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/console.h"
#include "invariants/suite/shared_verdict.h"

namespace shardproof {

int RunLaunchedSuite(int argc, char** argv, SuiteProgram program,
                     const DeviceEnginesOf& device_engines) {
  const absl::StatusOr<LaunchEnvironment> environment = ReadLaunchEnvironment(std::getenv);
  if (!environment.ok()) return ReportBadInput(program.name, environment.status());
  RanksHere ranks(program.name, *environment);
  std::optional<SharedVerdicts> verdicts;
  DeviceEngineFactory factory = nullptr;
  program.tells = ranks.leads();
  program.join = [&](absl::Duration timeout) {
    SHARDPROOF_RETURN_IF_ERROR(ranks.Join(timeout));
    if (ranks.in_processes()) verdicts.emplace(*ranks.job(), timeout);
    if (device_engines) factory = device_engines(ranks, timeout);
    return absl::OkStatus();
  };
  program.ready = [&ranks, ready = std::move(program.ready)] {
    return ranks.AgreeOn(ready ? ready() : absl::OkStatus());
  };
  program.prepare = [&](CaseOptions& options) {
    options.ranks = ranks.case_ranks();
    options.make_device_engine = factory;
  };
  if (ranks.in_processes()) {
    program.agree = [&](const EngineVerdict& mine) -> absl::StatusOr<EngineVerdict> {
      absl::StatusOr<EngineVerdict> shared = verdicts->Share(mine);
      // Those that are left end with the same words, which rank 0 says.
      if (!shared.ok()) return ranks.AgreeOn(shared.status());
      return shared;
    };
  }
  const absl::StatusOr<int> exit_code = RunSuite(argc, argv, program);
  return exit_code.ok() ? ranks.Leave(*exit_code) : ranks.Fail(exit_code.status());
}

}  // namespace shardproof
