#include "invariants/suite/launched_suite.h"

#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/launch/launch_environment.h"
#include "invariants/suite/console.h"
#include "invariants/suite/shared_verdict.h"

namespace shardproof {
namespace {

// For ranks that share a processor with each other and with other tests.
constexpr absl::Duration kTimeout = absl::Seconds(40);

}  // namespace

int RunLaunchedSuite(int argc, char** argv, SuiteProgram program,
                     const DeviceEnginesOf& device_engines) {
  const absl::StatusOr<LaunchEnvironment> environment = ReadLaunchEnvironment(std::getenv);
  if (!environment.ok()) return ReportBadInput(program.name, environment.status());
  RanksHere ranks(program.name, *environment);
  const absl::Status joined = ranks.Join(kTimeout);
  if (!joined.ok()) return ranks.Fail(joined);
  std::optional<SharedVerdicts> verdicts;
  if (ranks.in_processes()) {
    verdicts.emplace(*ranks.job(), kTimeout);
    program.agree = [&verdicts](const EngineVerdict& mine) { return verdicts->Share(mine); };
  }
  program.tells = ranks.leads();
  const DeviceEngineFactory factory = device_engines ? device_engines(ranks) : nullptr;
  program.prepare = [&ranks, factory](CaseOptions& options) {
    options.ranks = ranks.case_ranks();
    options.make_device_engine = factory;
  };
  return ranks.Leave(RunSuite(argc, argv, program));
}

}  // namespace shardproof
