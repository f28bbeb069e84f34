#include "collectives/simulated/rank_threads.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/simulated/simulated_world.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// Wall time only bounds a run; it never decides who runs next.
using Clock = std::chrono::steady_clock;
using Body = std::function<absl::Status(RankThread&)>;
using Lock = std::unique_lock<std::mutex>;

constexpr int32_t kNobody = -1;

// The same sequence on every platform and standard library (Steele et al., SplitMix64).
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// Hands one turn from rank to rank. The mutex guards all members; the world belongs to the
// rank that has the turn, which is why nobody else describes it. Shared with the threads,
// because one that is given up on may outlive the run.
class Scheduler final : public Waiter, public std::enable_shared_from_this<Scheduler> {
 public:
  Scheduler(SimulatedWorld& world, uint64_t seed, absl::Duration timeout, Body body)
      : world_(world),
        timeout_(timeout),
        body_(std::move(body)),
        random_(seed),
        ranks_(world.size().value) {}

  absl::Status Run();
  bool gave_up_on_a_rank() const { return gave_up_; }

  absl::Status Block(SimulatedCommunicator& communicator, CollectiveHandle handle) override;
  absl::Status Yield(int32_t self);
  absl::StatusOr<Communicator*> communicator(Rank rank, Group group) {
    return world_.communicator(rank, group);
  }

 private:
  enum class State { kReady, kWaiting, kReturned, kGivenUp };

  struct RankState {
    State state = State::kReady;
    // What a waiting rank waits for.
    SimulatedCommunicator* communicator = nullptr;
    CollectiveHandle handle;
    std::condition_variable turn;
    std::thread thread;
  };

  void RunBody(int32_t self);
  absl::Status EndTurn(Lock& lock, int32_t self);
  void PassTurn();
  void CollectRunnable();
  void GiveUpOnRunningRank();
  bool CanGoOn(const RankState& rank) const;
  bool AnyWaits() const;
  bool HasTurn(int32_t self) const;
  std::string DescribeRanks() const;
  std::string DescribeRank(int32_t rank) const;

  SimulatedWorld& world_;
  const absl::Duration timeout_;
  const Body body_;
  Clock::time_point limit_;

  std::mutex mutex_;
  SplitMix64 random_;
  std::vector<RankState> ranks_;
  std::vector<int32_t> runnable_;  // scratch of PassTurn
  int32_t running_ = kNobody;      // who has the turn; kNobody once all have returned
  std::condition_variable all_returned_;
  absl::Status failure_;  // of the run: the first one
  bool gave_up_ = false;
};

class RankThreadOfScheduler final : public RankThread {
 public:
  RankThreadOfScheduler(Scheduler* scheduler, Rank rank) : scheduler_(scheduler), rank_(rank) {}

  Rank rank() const override { return rank_; }
  absl::StatusOr<Communicator*> communicator(Group group) override {
    return scheduler_->communicator(rank_, group);
  }
  absl::Status Yield() override { return scheduler_->Yield(rank_.value); }

 private:
  Scheduler* const scheduler_;
  const Rank rank_;
};

absl::Status Scheduler::Run() {
  Lock lock(mutex_);
  const auto timeout = absl::ToChronoNanoseconds(timeout_);
  limit_ = Clock::now() + timeout;
  for (int32_t rank = 0; rank < world_.size().value; ++rank) {
    ranks_[rank].thread =
        std::thread([scheduler = shared_from_this(), rank] { scheduler->RunBody(rank); });
  }
  PassTurn();
  // Ranks notice the limit themselves when their turn ends. What is left here is the rank whose
  // turn does not end, and after it any that misbehaves when it is released.
  auto patience_ends = limit_ + timeout;
  while (!all_returned_.wait_until(lock, patience_ends, [&] { return running_ == kNobody; })) {
    GiveUpOnRunningRank();
    patience_ends = Clock::now() + timeout;
  }
  const absl::Status result = failure_;
  lock.unlock();
  // A rank's state no longer changes: it returned, or nobody waits for it.
  for (RankState& rank : ranks_) {
    if (rank.state == State::kGivenUp) {
      rank.thread.detach();
    } else {
      rank.thread.join();
    }
  }
  return result;
}

void Scheduler::RunBody(int32_t self) {
  {
    Lock lock(mutex_);
    ranks_[self].turn.wait(lock, [&] { return HasTurn(self); });
  }
  RankThreadOfScheduler view(this, Rank{self});
  const absl::Status status = body_(view);
  Lock lock(mutex_);
  if (!HasTurn(self)) return;  // Given up on.
  ranks_[self].state = State::kReturned;
  if (!status.ok() && failure_.ok()) {
    failure_ = absl::Status(status.code(),
                            absl::StrCat("rank ", self, " returned an error: ", status.message()));
  }
  PassTurn();
}

absl::Status Scheduler::Block(SimulatedCommunicator& communicator, CollectiveHandle handle) {
  {
    Lock lock(mutex_);
    const int32_t self = running_;
    if (self == kNobody || ranks_[self].thread.get_id() != std::this_thread::get_id()) {
      if (!failure_.ok()) return failure_;
      return absl::FailedPreconditionError(
          absl::StrCat("Wait of rank ", communicator.rank().value,
                       "'s communicator was called by a thread that has no turn, while "
                       "RunRanks runs the ranks of its world"));
    }
    RankState& rank = ranks_[self];
    rank.state = State::kWaiting;
    rank.communicator = &communicator;
    rank.handle = handle;
    SHARDPROOF_RETURN_IF_ERROR(EndTurn(lock, self));
  }
  return communicator.Poll(handle).status();  // Done, or the group disagrees.
}

absl::Status Scheduler::Yield(int32_t self) {
  Lock lock(mutex_);
  if (!HasTurn(self)) return failure_;  // Given up on.
  return EndTurn(lock, self);
}

// Returns when the rank has its next turn: it may go on, or the run has failed.
absl::Status Scheduler::EndTurn(Lock& lock, int32_t self) {
  if (failure_.ok() && Clock::now() >= limit_) {
    failure_ = absl::DeadlineExceededError(absl::StrCat(
        "the ranks did not return within ", absl::FormatDuration(timeout_), ": ", DescribeRanks()));
  }
  PassTurn();
  ranks_[self].turn.wait(lock, [&] { return HasTurn(self); });
  ranks_[self].state = State::kReady;
  return failure_;
}

// Draws who runs next; called with the turn, or when the rank that has it was given up on.
void Scheduler::PassTurn() {
  CollectRunnable();
  if (runnable_.empty() && AnyWaits()) {
    failure_ = absl::DeadlineExceededError(absl::StrCat("deadlock: ", DescribeRanks()));
    CollectRunnable();  // The failure releases all that wait.
  }
  if (runnable_.empty()) {
    running_ = kNobody;
    all_returned_.notify_one();
    return;
  }
  running_ = runnable_[random_.Next() % runnable_.size()];
  ranks_[running_].turn.notify_one();
}

void Scheduler::CollectRunnable() {
  runnable_.clear();
  for (int32_t rank = 0; rank < world_.size().value; ++rank) {
    if (CanGoOn(ranks_[rank])) runnable_.push_back(rank);
  }
}

bool Scheduler::CanGoOn(const RankState& rank) const {
  if (rank.state == State::kReady) return true;
  if (rank.state != State::kWaiting) return false;
  // A failure releases the rank. It comes before the look at the world, which a rank that was
  // given up on may be changing.
  if (!failure_.ok()) return true;
  const absl::StatusOr<bool> done = rank.communicator->Poll(rank.handle);
  return !done.ok() || *done;
}

bool Scheduler::AnyWaits() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const RankState& rank) { return rank.state == State::kWaiting; });
}

bool Scheduler::HasTurn(int32_t self) const { return running_ == self; }

void Scheduler::GiveUpOnRunningRank() {
  const std::string what = absl::StrCat("rank ", running_, " did not wait, yield or return within ",
                                        absl::FormatDuration(timeout_), " and still runs");
  failure_ = failure_.ok() ? absl::DeadlineExceededError(what)
                           : absl::Status(failure_.code(),
                                          absl::StrCat(failure_.message(), "; after that ", what));
  ranks_[running_].state = State::kGivenUp;
  gave_up_ = true;
  PassTurn();
}

std::string Scheduler::DescribeRanks() const {
  std::vector<std::string> lines;
  for (int32_t rank = 0; rank < world_.size().value; ++rank) lines.push_back(DescribeRank(rank));
  return absl::StrJoin(lines, "; ");
}

std::string Scheduler::DescribeRank(int32_t rank) const {
  const RankState& state = ranks_[rank];
  if (state.state == State::kReturned) return absl::StrCat("rank ", rank, " already returned");
  if (CanGoOn(state)) return absl::StrCat("rank ", rank, " can go on");
  const std::vector<Rank> missing = state.communicator->NotArrived(state.handle);
  return absl::StrCat(
      "rank ", rank, " waits for ", state.communicator->DescribeCall(state.handle),
      ", not arrived: ", absl::StrJoin(missing, ", ", [](std::string* text, Rank missing_rank) {
        absl::StrAppend(text, "rank ", missing_rank.value);
      }));
}

}  // namespace

absl::Status RunRanks(SimulatedWorld& world, uint64_t seed, absl::Duration timeout,
                      const std::function<absl::Status(RankThread&)>& body) {
  if (timeout <= absl::ZeroDuration() || timeout > absl::Hours(24 * 365)) {
    return absl::InvalidArgumentError(absl::StrCat("a timeout of ", absl::FormatDuration(timeout),
                                                   ": it must be positive and at most a year"));
  }
  if (world.waiter() != nullptr) {
    return absl::FailedPreconditionError(
        "the ranks of this world run already, or one of an earlier run never ended its turn");
  }
  const auto scheduler = std::make_shared<Scheduler>(world, seed, timeout, body);
  world.set_waiter(scheduler);
  const absl::Status status = scheduler->Run();
  // A thread that was given up on may still call Wait; it finds the run's failure there.
  if (!scheduler->gave_up_on_a_rank()) world.set_waiter(nullptr);
  return status;
}

}  // namespace shardproof
