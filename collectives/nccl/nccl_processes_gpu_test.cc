// NCCL with a process a rank, as under torchrun. The processes look like nodes of their own, so one
// GPU is enough: NCCL then connects them over sockets. A rank that is killed or stopped must end
// the other with an error that names it and the collective, within the timeout and a few seconds;
// also rank 0, which serves the job that the other asks who is missing.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/device_exchange_for_test.h"
#include "collectives/device_world.h"
#include "collectives/launch/job.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/nccl/nccl_world.h"
#include "gtest/gtest.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Seconds(5);
// What may come on top of the timeout: to find out who is missing, and then to end the process.
constexpr absl::Duration kToError = absl::Seconds(3);
constexpr absl::Duration kToExit = absl::Seconds(5);
// A rank 0 that is stopped is asked for so long.
constexpr absl::Duration kRankZeroAnswers = absl::Seconds(10);
constexpr Group kBoth = {0, 1, 2};
// What a child does: "collectives", or the signal that a rank gives itself and the rank: "kill 1".
constexpr char kPart[] = "SHARDPROOF_TEST_PART";

// From the loss of a rank to the other's error, at most: `part` is what the lost one did.
absl::Duration TimeToError(const std::string& part) {
  return kShort + kToError + (part == "stop 0" ? kRankZeroAnswers : absl::ZeroDuration());
}

// The other rank's part of a run in which `lost` is: OK if the error says so in time. The
// communicator's timeout is kShort.
absl::Status ExpectLoss(DeviceWorld& world, Communicator& communicator, Rank lost,
                        absl::Duration in_time) {
  const FloatsForTest values(std::vector<float>(500, 1.0f));
  const absl::Time start = absl::Now();
  const auto handle = communicator.Start(AllReduceForTest(500, values.data(), 77));
  const absl::Status result = handle.ok() ? communicator.Wait(*handle, kShort) : handle.status();
  const absl::Duration took = absl::Now() - start;
  world.Abort(absl::AbortedError(result.message()));
  // Of rank 0 there is no roll call to ask: the job itself says that it is gone or silent.
  const bool names_rank = lost == Rank{0}
                              ? absl::StrContains(result.message(), "rank 0 is gone") ||
                                    absl::StrContains(result.message(), "rank 0 does not answer")
                              : absl::StrContains(result.message(), "rank 1 (");
  const bool named =
      !result.ok() && absl::StrContains(result.message(), "all_reduce of 500") && names_rank;
  if (named && took <= in_time) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(named ? "late, after " : "not named, after ",
                                          absl::FormatDuration(took), ": ", result.ToString()));
}

absl::Status Child(const std::string& part) {
  SHARDPROOF_ASSIGN_OR_RETURN(
      const LaunchEnvironment environment,
      ReadLaunchEnvironment([](const char* name) -> const char* { return std::getenv(name); }));
  SHARDPROOF_ASSIGN_OR_RETURN(auto job, JoinTorchrunJob(environment, kLong));
  SHARDPROOF_ASSIGN_OR_RETURN(auto world, MakeNcclWorld(*job, environment.local_rank));
  const StreamForTest stream;
  SHARDPROOF_ASSIGN_OR_RETURN(auto communicator,
                              world->Connect(job->rank(), kBoth, stream.get(), kLong));
  SHARDPROOF_RETURN_IF_ERROR(CheckEveryCollective(*communicator, stream.get()));
  if (part == "collectives") return absl::OkStatus();
  // Again, over what NCCL has connected: now nothing takes longer than the short timeout.
  SHARDPROOF_ASSIGN_OR_RETURN(communicator,
                              world->Connect(job->rank(), kBoth, stream.get(), kShort));
  const Rank lost = absl::EndsWith(part, " 0") ? Rank{0} : Rank{1};
  // Not before the other has all of the last collective: some of it may still be on its way.
  if (job->rank() != lost) {
    SHARDPROOF_RETURN_IF_ERROR(job->Set("all checked", ""));
    return ExpectLoss(*world, *communicator, lost, TimeToError(part));
  }
  SHARDPROOF_RETURN_IF_ERROR(job->Await("all checked", "the other rank", kLong).status());
  raise(absl::StartsWith(part, "kill") ? SIGKILL : SIGSTOP);
  return absl::OkStatus();
}

// So that there is a range of ports that torchrun's agent might have chosen. 0 if there is none.
int FreePort() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(listener);
  return bound ? ntohs(address.sin_port) : 0;
}

pid_t StartRank(int rank, int port, const std::string& part) {
  const std::vector<std::pair<std::string, std::string>> variables = {
      {"RANK", absl::StrCat(rank)},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "0"},
      {"LOCAL_WORLD_SIZE", "1"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", absl::StrCat(port)},
      {"NCCL_HOSTID", absl::StrCat("node", rank)},
      {"NCCL_SOCKET_IFNAME", "lo"},
      {kPart, part}};
  const pid_t child = fork();
  if (child != 0) return child;
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  execl("/proc/self/exe", "nccl_processes_gpu_test", static_cast<char*>(nullptr));
  _exit(127);
}

// The exit status of a process as waitpid gives it, or -1 if it does not end in time.
int AwaitEnd(pid_t child, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (absl::Now() > deadline) return -1;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return status;
}

// When a process has ended or stopped; InfiniteFuture if it does not in time.
absl::Time AwaitLoss(pid_t child, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (waitpid(child, nullptr, WNOHANG | WUNTRACED) == 0) {
    if (absl::Now() > deadline) return absl::InfiniteFuture();
    absl::SleepFor(absl::Milliseconds(5));
  }
  return absl::Now();
}

class NcclProcesses : public testing::Test {
 protected:
  void Start(const std::string& part) {
    const int port = FreePort();
    ASSERT_GT(port, 0);
    for (int rank : {0, 1}) ranks.push_back(StartRank(rank, port, part));
  }
  // Rank `lost` is killed or stopped, and the other has an error and ends in time.
  void ExpectEndAfter(const std::string& how, int lost) {
    const std::string part = absl::StrCat(how, " ", lost);
    ASSERT_NO_FATAL_FAILURE(Start(part));
    const absl::Time loss = AwaitLoss(ranks[lost], absl::Minutes(2));
    ASSERT_LT(loss, absl::InfiniteFuture()) << "rank " << lost << " is not lost";
    EXPECT_EQ(AwaitEnd(ranks[1 - lost], absl::Minutes(1)), 0);
    EXPECT_LT(absl::Now() - loss, TimeToError(part) + kToExit);
  }
  // Kills what has not ended; a pid that was waited for is no longer ours.
  void TearDown() override {
    for (const pid_t child : ranks) {
      if (waitpid(child, nullptr, WNOHANG) == 0) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
      }
    }
  }
  std::vector<pid_t> ranks;
};

TEST_F(NcclProcesses, EveryCollectiveGivesWhatPlainLoopsDo) {
  ASSERT_NO_FATAL_FAILURE(Start("collectives"));
  for (const pid_t child : ranks) EXPECT_EQ(AwaitEnd(child, absl::Minutes(2)), 0);
}

TEST_F(NcclProcesses, AKilledRankEndsTheOtherWithItsName) { ExpectEndAfter("kill", 1); }

TEST_F(NcclProcesses, AStoppedRankEndsTheOtherWithItsName) { ExpectEndAfter("stop", 1); }

TEST_F(NcclProcesses, AKilledRankZeroEndsTheOtherWithItsName) { ExpectEndAfter("kill", 0); }

TEST_F(NcclProcesses, AStoppedRankZeroEndsTheOtherWithItsName) { ExpectEndAfter("stop", 0); }

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  if (const char* const part = std::getenv(shardproof::kPart)) {
    const absl::Status status = shardproof::Child(part);
    if (!status.ok()) std::cerr << status << "\n";
    return status.ok() && testing::UnitTest::GetInstance()->Passed() ? 0 : 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
