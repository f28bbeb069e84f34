#include "invariants/suite/trainer_case.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collectives/forwarding_communicator.h"
#include "collectives/ledger.h"
#include "collectives/simulated/rank_threads.h"
#include "collectives/simulated/simulated_world.h"
#include "invariants/checks/all_checks.h"
#include "invariants/run_description/message_text.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/trainer_observation.h"
#include "trainer/model/importers.h"
#include "trainer/model/model_compute.h"

namespace shardproof {
namespace {

// Tells the rank's log what the ledger recorded, and when the rank saw it end.
class LoggedCommunicator : public ForwardingCommunicator {
 public:
  LoggedCommunicator(Communicator* recorded, const Ledger* ledger, StepLog* log)
      : ForwardingCommunicator(recorded), ledger_(ledger), log_(log) {}

  void BeginStep() { events_.clear(); }

  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    absl::StatusOr<CollectiveHandle> handle = inner().Start(call);
    if (handle.ok()) {
      events_[handle->id] = log_->CollectiveStarted(ledger_->entries(rank()).back());
    }
    return handle;
  }
  absl::StatusOr<bool> Poll(CollectiveHandle handle) override {
    absl::StatusOr<bool> done = inner().Poll(handle);
    if (done.ok() && *done) Done(handle);
    return done;
  }
  absl::Status Wait(CollectiveHandle handle, absl::Duration timeout) override {
    absl::Status status = inner().Wait(handle, timeout);
    if (status.ok()) Done(handle);
    return status;
  }

 private:
  void Done(CollectiveHandle handle) {
    const auto found = events_.find(handle.id);
    if (found != events_.end()) log_->CollectiveDone(found->second);
  }

  const Ledger* const ledger_;
  StepLog* const log_;
  std::map<int64_t, int32_t> events_;  // by handle, of this step
};

// Everything the ranks' threads may touch. Shared with them: a thread that never ends keeps it.
struct Session {
  Session(const TrainerUnderTest& trainer_under_test, const RunDescription& run_to_train)
      : trainer(trainer_under_test),
        run(run_to_train),
        initial_values(run),
        ledger(run.sharding.world_size) {}

  const TrainerUnderTest trainer;
  const RunDescription run;
  const InitialValues initial_values;
  std::unique_ptr<ModelCompute> compute;
  std::unique_ptr<DataSource> data;
  std::unique_ptr<SimulatedWorld> world;
  Ledger ledger;
  // By rank, in the order in which they need each other.
  std::vector<std::unique_ptr<Communicator>> recorded;
  std::vector<std::unique_ptr<StepLog>> logs;
  std::vector<std::unique_ptr<LoggedCommunicator>> communicators;
  std::vector<std::unique_ptr<RankTrainer>> trainers;
  std::vector<absl::Status> made;
  std::vector<RankReport> reports;
};

absl::Status Prefixed(const absl::Status& status, absl::string_view prefix) {
  return absl::Status(status.code(), absl::StrCat(prefix, status.message()));
}

absl::Status ConnectRanks(Session& session) {
  const int32_t ranks = session.run.sharding.world_size.value;
  SHARDPROOF_ASSIGN_OR_RETURN(session.world,
                              SimulatedWorld::Create(session.run.sharding.world_size));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    SHARDPROOF_ASSIGN_OR_RETURN(Communicator* const inner,
                                session.world->communicator(Rank{rank}, Group{0, 1, ranks}));
    session.recorded.push_back(session.ledger.Record(inner));
    session.logs.push_back(std::make_unique<StepLog>(Rank{rank}));
    session.communicators.push_back(std::make_unique<LoggedCommunicator>(
        session.recorded.back().get(), &session.ledger, session.logs.back().get()));
  }
  session.trainers.resize(ranks);
  session.made.resize(ranks, absl::UnknownError("not made"));
  session.reports.resize(ranks);
  return absl::OkStatus();
}

// One rank's `make`, in its thread.
absl::Status MakeRank(Session& session, Rank rank) {
  const int32_t r = rank.value;
  absl::StatusOr<std::unique_ptr<RankTrainer>> made =
      session.trainer.make({session.run, rank, session.initial_values, *session.data,
                            *session.communicators[r], *session.logs[r]});
  if (made.ok() && *made == nullptr) made = absl::InternalError("returned OK and no trainer");
  session.made[r] = made.status();
  if (made.ok()) session.trainers[r] = *std::move(made);
  // A refusal is no failure of the other ranks: they refuse by themselves.
  const bool refused = session.made[r].code() == absl::StatusCode::kUnimplemented;
  return refused ? absl::OkStatus() : Prefixed(session.made[r], "make: ");
}

// The reason when all ranks refuse, "" when none does.
absl::StatusOr<std::string> RefusalOf(const Session& session) {
  const auto refuses = [](const absl::Status& status) {
    return status.code() == absl::StatusCode::kUnimplemented;
  };
  const auto first = std::find_if(session.made.begin(), session.made.end(), refuses);
  if (first == session.made.end()) return std::string();
  const auto other = std::find_if_not(session.made.begin(), session.made.end(), refuses);
  if (other == session.made.end()) return std::string(first->message());
  return absl::FailedPreconditionError(absl::StrCat(
      "make: rank ", first - session.made.begin(), " refuses the run (", first->message(),
      ") and rank ", other - session.made.begin(), " does not; all ranks must answer alike"));
}

absl::StatusOr<std::string> MakeTrainers(const std::shared_ptr<Session>& session,
                                         absl::Duration timeout) {
  const absl::Status status =
      RunRanks(*session->world, session->run.data.seed, timeout,
               [session](RankThread& self) { return MakeRank(*session, self.rank()); });
  SHARDPROOF_ASSIGN_OR_RETURN(std::string refusal, RefusalOf(*session));
  SHARDPROOF_RETURN_IF_ERROR(status);
  return refusal;
}

// What a trainer told over the whole run.
struct Told {
  bool operations = false;
  bool computations = false;
};

// Trains one step on all ranks, then asks all of them what they hold.
absl::StatusOr<StepObservation> TrainStep(const std::shared_ptr<Session>& session, int64_t step,
                                          absl::Duration timeout) {
  session->ledger.Clear();
  for (size_t rank = 0; rank < session->logs.size(); ++rank) {
    session->logs[rank]->BeginStep();
    session->communicators[rank]->BeginStep();
  }
  const uint64_t seed = session->run.data.seed * 1000003 + static_cast<uint64_t>(step);
  const absl::Status trained =
      RunRanks(*session->world, seed, timeout, [session, step](RankThread& self) {
        const absl::Status status = session->trainers[self.rank().value]->Step();
        return status.ok() ? status : Prefixed(status, absl::StrCat("step ", step, ": "));
      });
  if (!trained.ok()) {
    // A deadlock is nobody's error, so that no rank has named the step.
    return trained.code() == absl::StatusCode::kDeadlineExceeded
               ? Prefixed(trained, absl::StrCat("step ", step, ": "))
               : trained;
  }
  std::vector<RankStep> ranks;
  for (size_t rank = 0; rank < session->logs.size(); ++rank) {
    session->reports[rank] = RankReport();
    const absl::Status status = session->trainers[rank]->Observe(session->reports[rank]);
    if (!status.ok()) {
      return Prefixed(status, absl::StrCat("step ", step, ", rank ", rank, ": Observe: "));
    }
    ranks.push_back({&session->reports[rank], session->logs[rank].get()});
  }
  return MergeStep(session->run, step, session->trainer.arithmetic, ranks);
}

void Note(const StepObservation& observation, Told& told) {
  for (const RankEvents& events : observation.events) {
    told.operations = true;
    for (const Event& event : events.events) {
      told.computations |= event.kind == EventKind::kCompute;
    }
  }
}

// Checks that follow a step from computation to computation would take a trainer that tells of
// its collectives only for one that computes nothing.
void WithdrawUnobserved(const Told& told, CaseResult& result) {
  if (told.computations || !told.operations) return;
  result.verdict = Verdict::kNotObserved;
  for (CheckResult& check : result.checks) {
    const bool follows = check.name == "issue_order" || check.name == "unshard_lifecycle" ||
                         check.name == "peak_memory" || check.name == "ordering";
    if (follows) {
      CheckResult withdrawn;
      withdrawn.name = check.name;
      withdrawn.reason = "no rank told of a computation (StepLog::Compute)";
      check = std::move(withdrawn);
    }
    if (check.verdict == Verdict::kFail) result.verdict = Verdict::kFail;
    const bool observed = check.verdict != Verdict::kNotObserved;
    if (observed && result.verdict != Verdict::kFail) result.verdict = Verdict::kPass;
  }
}

CaseResult RefusedResult(std::string reason) {
  CaseResult result;
  result.verdict = Verdict::kRefused;
  result.refusal = std::move(reason);
  return result;
}

absl::StatusOr<CaseResult> TrainAndJudge(const std::shared_ptr<Session>& session,
                                         const TrainerCaseOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(ConnectRanks(*session));
  SHARDPROOF_ASSIGN_OR_RETURN(std::string refusal, MakeTrainers(session, options.step_timeout));
  if (!refusal.empty()) {
    return RefusedResult(std::move(refusal));
  }
  Oracle oracle;
  ReferenceOptions reference;
  // Sums of unknown order are judged within bounds, which need it.
  reference.gradient_magnitude = session->trainer.arithmetic == Arithmetic::kAnyOrder;
  absl::StatusOr<std::unique_ptr<ReplicatedTrainer>> replicated =
      ReplicatedTrainer::Create(session->run, reference);
  if (replicated.ok()) {
    oracle.trainer = *std::move(replicated);
  } else if (absl::IsUnimplemented(replicated.status())) {
    // The trainer may do more than the oracle; what does not need values is judged all the same.
    oracle.missing = std::string(replicated.status().message());
  } else {
    return replicated.status();
  }
  Told told;
  StepObservation observation;
  int64_t next_step = 0;
  const StepSource steps = [&]() -> absl::StatusOr<const StepObservation*> {
    if (next_step == session->run.data.steps) return nullptr;
    SHARDPROOF_ASSIGN_OR_RETURN(observation, TrainStep(session, next_step, options.step_timeout));
    ++next_step;
    Note(observation, told);
    return &observation;
  };
  JudgeOptions judge;
  judge.checks = options.checks;
  SHARDPROOF_ASSIGN_OR_RETURN(CaseResult result, JudgeSteps(session->run, steps, oracle, judge));
  WithdrawUnobserved(told, result);
  return result;
}

}  // namespace

absl::StatusOr<CaseResult> RunTrainerCase(const TrainerUnderTest& trainer,
                                          const RunDescription& run,
                                          const TrainerCaseOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(Validate(run));
  for (const std::string& name : options.checks) {
    SHARDPROOF_RETURN_IF_ERROR(MakeCheck(name).status());
  }
  if (trainer.make == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("trainer '", Shown(trainer.name), "' has no function `make`"));
  }
  const auto session = std::make_shared<Session>(trainer, run);
  absl::StatusOr<std::unique_ptr<ModelCompute>> compute = MakeModelCompute(session->run);
  if (compute.status().code() == absl::StatusCode::kUnimplemented) {
    return RefusedResult(std::string(compute.status().message()));
  }
  SHARDPROOF_RETURN_IF_ERROR(compute.status());
  session->compute = *std::move(compute);
  session->data = std::make_unique<DataSource>(*session->compute);
  absl::StatusOr<CaseResult> result = TrainAndJudge(session, options);
  if (result.ok()) return result;
  return Prefixed(result.status(), absl::StrCat("trainer '", Shown(trainer.name), "': "));
}

absl::StatusOr<RunDescription> ParseRunText(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  return absl::StartsWith(text, "{") ? ParseRunJson(text, ImportModel)
                                     : ParseRun(text, ImportModel);
}

}  // namespace shardproof
