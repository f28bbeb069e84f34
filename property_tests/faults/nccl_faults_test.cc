// Faults with NCCL between processes: each process of a launcher is a rank, and rank 0 says whether
// every one was found. Those whose values are judged by bounds, by numeric_equivalence; a
// collective that nobody is told of, by the kernels that CUPTI saw.
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/nccl/requirements.h"
#include "invariants/suite/console.h"
#include "invariants/suite/cuda_case.h"
#include "invariants/suite/ranks_here.h"
#include "property_tests/faults/device_faults.h"
#include "property_tests/faults/kill.h"
#include "property_tests/faults/kill_matrix.h"
#include "property_tests/faults/secret_collective.h"

namespace shardproof {
namespace {

constexpr char kProgram[] = "nccl_faults_test";
constexpr absl::Duration kTimeout = absl::Seconds(40);

struct Trial {
  std::string name;
  std::string run;
  PartsEdit edit;
  // What is wrong with how the edited run fares; "" if nothing.
  std::function<std::string(const KillReport& report)> complain;
};

std::vector<Trial> AllTrials() {
  std::vector<Trial> trials;
  for (const Fault& fault : FaultsWithinBounds()) {
    trials.push_back({fault.row, fault.run, fault.apply, [fault](const KillReport& report) {
                        return Complaint(FaultOutcome{fault, report});
                      }});
  }
  trials.push_back({"a secret collective", kSecretRun, CommunicateInSecret(), SecretComplaint});
  return trials;
}

// What is wrong with how a trial fares, on the rank that judges; "" if nothing. An error is not
// what these faults are to be found by, and all ranks have it. All ranks execute the same runs,
// whatever rank 0 has found.
absl::StatusOr<std::string> Judge(const Trial& trial, const KillEngines& engines) {
  const absl::StatusOr<RunDescription> run = ParseFaultRun(trial.run);
  if (!run.ok()) return run.status();
  const KillReport without = RunEdited(*run, {}, engines);
  if (!without.error.ok()) return without.error;
  const KillReport with = RunEdited(*run, trial.edit, engines);
  if (!with.error.ok()) return with.error;
  if (engines.ranks.agreement->job().rank().value != 0) return "";
  if (Killed(without) || !without.unjudged.empty() || !without.refusal.empty()) {
    return absl::StrCat("the run without the fault is found by ",
                        absl::StrJoin(without.killers, ", "),
                        "; unjudged: ", absl::StrJoin(without.unjudged, ", "), without.refusal);
  }
  return trial.complain(with);
}

int JudgeAll(RanksHere& ranks) {
  const KillEngines engines = {
      .values = EngineKind::kCuda,
      .provenance = false,
      .make_device_engine = CudaEngineFactory(
          {.timeout = kTimeout, .job = ranks.job(), .device = ranks.local_rank()}),
      .ranks = ranks.case_ranks()};
  int complaints = 0;
  for (const Trial& trial : AllTrials()) {
    const absl::StatusOr<std::string> complaint = Judge(trial, engines);
    if (!complaint.ok()) return ranks.Fail(complaint.status());
    if (!ranks.leads()) continue;
    complaints += !complaint->empty();
    std::cout << trial.name << " on " << Name(engines.values) << ", " << trial.run << ": "
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
