// Faults whose values are judged by bounds, with NCCL between processes: each process of a launcher
// is a rank, and rank 0 says whether numeric_equivalence has found every one.
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/nccl/requirements.h"
#include "invariants/suite/console.h"
#include "invariants/suite/cuda_case.h"
#include "invariants/suite/ranks_here.h"
#include "property_tests/faults/device_faults.h"
#include "property_tests/faults/kill.h"
#include "property_tests/faults/kill_matrix.h"

namespace shardproof {
namespace {

constexpr char kProgram[] = "nccl_faults_test";
constexpr absl::Duration kTimeout = absl::Seconds(40);

// What is wrong with how a fault fares, on the rank that judges; "" if nothing. An error is not
// what these faults are to be found by, and all ranks have it.
absl::StatusOr<std::string> Judge(const Fault& fault, const KillEngines& engines) {
  const absl::StatusOr<RunDescription> run = ParseFaultRun(fault.run);
  if (!run.ok()) return run.status();
  const KillReport without = RunEdited(*run, {}, engines);
  if (!without.error.ok()) return without.error;
  if (Killed(without)) {
    return absl::StrCat(fault.run, " without the fault is found by ", without.killers[0]);
  }
  const FaultOutcome outcome = {fault, RunEdited(*run, fault.apply, engines)};
  if (!outcome.report.error.ok()) return outcome.report.error;
  return Complaint(outcome);
}

int JudgeAll(RanksHere& ranks) {
  const KillEngines engines = {
      .values = EngineKind::kCuda,
      .provenance = false,
      .make_device_engine = CudaEngineFactory(
          {.timeout = kTimeout, .job = ranks.job(), .device = ranks.local_rank()}),
      .ranks = ranks.case_ranks()};
  int complaints = 0;
  for (const Fault& fault : FaultsWithinBounds()) {
    const absl::StatusOr<std::string> complaint = Judge(fault, engines);
    if (!complaint.ok()) return ranks.Fail(complaint.status());
    if (!ranks.leads()) continue;
    complaints += !complaint->empty();
    std::cout << fault.row << " on " << Name(engines.values) << ", " << fault.run << ": "
              << (complaint->empty() ? "found" : *complaint) << std::endl;
  }
  return ranks.Leave(complaints > 0 ? 1 : 0);
}

int Main() {
  const absl::StatusOr<LaunchEnvironment> launch = ReadLaunchEnvironment(std::getenv);
  if (!launch.ok()) return ReportBadInput(kProgram, launch.status());
  if (launch->launcher == Launcher::kNone) {
    return ReportBadInput(kProgram, absl::InvalidArgumentError(
                                        "no launcher; accepted: ci/nodes_of_one_gpu 2, torchrun "
                                        "and mpirun with two ranks"));
  }
  const absl::Status gpus = CheckGpuRequirements(launch->local_rank + 1);
  if (!gpus.ok()) return ReportBadInput(kProgram, gpus);
  RanksHere ranks(kProgram, *launch);
  const absl::Status joined = ranks.Join(kTimeout);
  if (!joined.ok()) return ranks.Fail(joined);
  return JudgeAll(ranks);
}

}  // namespace
}  // namespace shardproof

int main() { return shardproof::Main(); }
