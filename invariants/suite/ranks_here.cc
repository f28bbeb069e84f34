#include "invariants/suite/ranks_here.h"

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/mpi/mpi_launch.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/console.h"

namespace shardproof {
namespace {

// Rank 0's words come first: the launcher ends the job with the first process that fails.
constexpr absl::Duration kHeadStart = absl::Seconds(2);
// So long the others wait for rank 0 to end the job.
constexpr absl::Duration kEnd = absl::Seconds(10);

}  // namespace

absl::Status RanksHere::Join(absl::Duration timeout) {
  const absl::Status met = Meet(timeout);
  alone_ = !met.ok();
  return met;
}

absl::Status RanksHere::Meet(absl::Duration timeout) {
  switch (environment_.launcher) {
    case Launcher::kNone:
      return absl::OkStatus();
    case Launcher::kMpirun: {
      SHARDPROOF_ASSIGN_OR_RETURN(mpi_, CreateMpiRanks({.timeout = timeout}));
      SHARDPROOF_ASSIGN_OR_RETURN(job_, JoinMpirunJob(*mpi_, environment_, timeout));
      break;
    }
    case Launcher::kTorchrun: {
      SHARDPROOF_ASSIGN_OR_RETURN(job_, JoinTorchrunJob(environment_, timeout));
      break;
    }
  }
  agreement_ = std::make_unique<Agreement>(*job_, timeout);
  return absl::OkStatus();
}

CaseRanks RanksHere::case_ranks() { return {.agreement = agreement_.get(), .world = mpi_.get()}; }

absl::Status RanksHere::AgreeOn(const absl::Status& status) {
  return agreement_ == nullptr ? status : agreement_->Conclude(status);
}

int RanksHere::Leave(int exit_code) {
  const absl::Status all_here = AgreeOn(absl::OkStatus());
  if (!all_here.ok()) return Fail(all_here);
  // Rank 0 serves the job, so it goes last: when all have said that they know that all are here.
  // Who cannot say so any more has ended well all the same.
  if (job_ != nullptr) (void)job_->Gather("", kEnd);
  return exit_code;
}

// A rank that waits for a stopped rank 0 between steps keeps others waiting, who then name it
// alone.
absl::Status RanksHere::WithSilenceOfRank0(const absl::Status& error) const {
  if (leads() || agreement_ == nullptr || IsKnownToAll(error)) return error;
  if (absl::StrContains(error.message(), "rank 0")) return error;
  const absl::Status answers = job_->GoneRanks().status();
  if (answers.ok()) return error;
  return absl::Status(error.code(), absl::StrCat(error.message(), "; and ", answers.message()));
}

int RanksHere::Fail(const absl::Status& error) {
  const absl::Status status = WithSilenceOfRank0(error);
  // What was wrong before the processes met, a flag say, is wrong in all of them. Who has looked
  // for the others and found nobody must speak for itself.
  const bool known_to_all = agreement_ == nullptr ? !alone_ : IsKnownToAll(status);
  const bool said_by_rank_0 = !leads() && known_to_all;
  if (said_by_rank_0) AwaitTheEnd();
  // Rank 0 may have looked in vain too; then its line is enough.
  if (alone_ && !leads()) absl::SleepFor(kHeadStart);
  if (mpi_ != nullptr) {
    const std::string line = OnOneLine(absl::StrCat(program_, ": ", status.message()));
    mpi_->Abort(absl::Status(status.code(), line), 2);
  }
  if (leads()) return ReportBadInput(program_, status);
  if (said_by_rank_0) return 2;
  return ReportBadInput(
      program_, absl::Status(status.code(), absl::StrCat("rank ", environment_.rank.value, ": ",
                                                         status.message())));
}

// Until rank 0 has ended the job, or long enough.
void RanksHere::AwaitTheEnd() {
  if (job_ == nullptr) {
    absl::SleepFor(kHeadStart);
  } else {
    // Nobody sets it: this ends when rank 0 does.
    (void)job_->Await("the end", "rank 0", kEnd);
    absl::SleepFor(kHeadStart);
  }
}

}  // namespace shardproof
