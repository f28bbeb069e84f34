// RanksHere: the ranks of a program's run that are in this process, from the launcher's environment
// to the job's end.
//
//   const auto environment = ReadLaunchEnvironment(std::getenv);
//   ... flags, which the environment has a say in ...
//   RanksHere ranks("audit", *environment);
//   absl::Status joined = ranks.Join(timeout);
//   if (!joined.ok()) return ranks.Fail(joined);
//   ... work; rank 0 alone prints ...
//   return ranks.Leave(exit_code);
//
// Without a launcher all ranks are here, and nothing is joined or left.
#ifndef INVARIANTS_SUITE_RANKS_HERE_H_
#define INVARIANTS_SUITE_RANKS_HERE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/launch/job.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/mpi/mpi_ranks.h"
#include "invariants/suite/run_case.h"
#include "trainer/engines/agreement.h"

namespace shardproof {

class RanksHere {
 public:
  // `program` stands before messages.
  RanksHere(absl::string_view program, LaunchEnvironment environment)
      : program_(program), environment_(std::move(environment)) {}

  bool in_processes() const { return environment_.launcher != Launcher::kNone; }
  // Whether this process prints, writes files and judges: it has all ranks, or rank 0.
  bool leads() const { return !in_processes() || environment_.rank.value == 0; }

  // Meets the other processes: under mpirun through MPI, under torchrun on the ports after its own.
  // `timeout` bounds this and every later wait of a rank for others. Where MPI itself waits for a
  // process that has ended or is stopped, this process ends when the timeout is over, with one line
  // on stderr and exit status 2 (collectives/mpi/watchdog.h).
  absl::Status Join(absl::Duration timeout);

  // After Join. What cases need to know; null where all ranks are here.
  CaseRanks case_ranks();
  Job* job() { return job_.get(); }

  // Among the ranks of this machine: the CUDA ordinal of this process's GPU.
  int32_t local_rank() const { return environment_.local_rank; }

  // What this process may use of what the machine has, which all processes on it share.
  int64_t ShareOf(int64_t machine_bytes) const {
    return machine_bytes / environment_.local_world_size;
  }

  // OK where it is on every rank; else what all ranks then have (Agreement::Conclude).
  absl::Status AgreeOn(const absl::Status& status);

  // The end of a run that went well: returns `exit_code` once all ranks have come here, so that
  // none waits for one that is gone. `exit_code` is rank 0's to choose.
  int Leave(int exit_code);

  // The end of one that did not: one line on stderr, exit code 2. What all ranks have found is
  // rank 0's to say, what one rank alone has found is its own, and so is why it could not join.
  // Where processes have met, all end, also those that are stopped (under torchrun, its agent sees
  // to that). May not return.
  int Fail(const absl::Status& status);

 private:
  absl::Status Meet(absl::Duration timeout);
  absl::Status WithSilenceOfRank0(const absl::Status& error) const;
  void AwaitTheEnd();

  const std::string program_;
  const LaunchEnvironment environment_;
  bool alone_ = false;  // Join has failed
  std::unique_ptr<MpiRanks> mpi_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Agreement> agreement_;
};

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_RANKS_HERE_H_
