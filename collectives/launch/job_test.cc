#include "collectives/launch/job.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/launch/connection.h"
#include "collectives/launch/deadline.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/launch/sockets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kLoopback[] = "127.0.0.1";
constexpr char kSecret[] = "secret of the test";
// Long enough for a loaded machine; no test waits for it to pass.
constexpr absl::Duration kPatience = absl::Seconds(30);
// A wait that passes, and the most that an error may take that is to come at once.
constexpr absl::Duration kShort = absl::Milliseconds(300);
constexpr absl::Duration kAtOnce = absl::Seconds(3);

using JobOr = absl::StatusOr<std::unique_ptr<Job>>;
using Jobs = std::vector<std::unique_ptr<Job>>;

JobOptions Options(int32_t rank, int32_t world_size, JobAddress address = {kLoopback, 0}) {
  JobOptions options;
  options.rank = Rank{rank};
  options.world_size = WorldSize{world_size};
  options.address = std::move(address);
  options.secret = kSecret;
  options.timeout = kPatience;
  return options;
}

// Rank 0 of a job on a thread, and where it serves.
struct RankZero {
  JobAddress address;
  std::future<JobOr> job;
};

RankZero StartRankZero(JobOptions options) {
  auto bound = std::make_shared<std::promise<JobAddress>>();
  std::future<JobAddress> address = bound->get_future();
  RankZero result;
  result.job = std::async(std::launch::async, [options, bound] {
    return JoinJob(options, [&](const JobAddress& where) {
      bound->set_value(where);
      return absl::OkStatus();
    });
  });
  result.address = address.get();
  return result;
}

std::future<JobOr> StartOther(JobOptions options) {
  return std::async(std::launch::async, [options] { return JoinJob(options, nullptr); });
}

// All ranks of a job, in this process.
Jobs JoinAll(int32_t world_size, JobAddress address = {kLoopback, 0}) {
  RankZero zero = StartRankZero(Options(0, world_size, std::move(address)));
  std::vector<std::future<JobOr>> others;
  for (int32_t rank = 1; rank < world_size; ++rank) {
    others.push_back(StartOther(Options(rank, world_size, zero.address)));
  }
  Jobs jobs;
  const auto add = [&](JobOr job) {
    EXPECT_TRUE(job.ok()) << job.status();
    jobs.push_back(job.ok() ? *std::move(job) : nullptr);
  };
  add(zero.job.get());
  for (std::future<JobOr>& other : others) add(other.get());
  return jobs;
}

// A process that is forked while this one has no other thread, runs `body` and ends. Each of the
// two can send the other one address. The destructor kills it.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<void(ChildProcess&)>& body) {
    EXPECT_EQ(pipe(to_child_), 0);
    EXPECT_EQ(pipe(to_parent_), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    body(*this);
    _exit(0);
  }
  ~ChildProcess() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
    for (const int descriptor : {to_child_[0], to_child_[1], to_parent_[0], to_parent_[1]}) {
      close(descriptor);
    }
  }
  ChildProcess(const ChildProcess&) = delete;

  void Signal(int signal) const { kill(pid_, signal); }
  void TellChild(int32_t port) const { Tell(to_child_[1], port); }
  void TellParent(int32_t port) const { Tell(to_parent_[1], port); }
  JobAddress HeardByChild() const { return Heard(to_child_[0]); }
  JobAddress HeardByParent() const { return Heard(to_parent_[0]); }

 private:
  static void Tell(int descriptor, int32_t port) {
    EXPECT_EQ(write(descriptor, &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  }
  static JobAddress Heard(int descriptor) {
    int32_t port = 0;
    EXPECT_EQ(read(descriptor, &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
    return {kLoopback, port};
  }

  pid_t pid_ = 0;
  int to_child_[2] = {};
  int to_parent_[2] = {};
};

// A process that joins as `rank`, runs `body` and then waits to be killed.
std::unique_ptr<ChildProcess> RankProcess(int32_t rank, int32_t world_size,
                                          const std::function<void(Job&)>& body) {
  return std::make_unique<ChildProcess>([&](ChildProcess& self) {
    const JobOr job = JoinJob(Options(rank, world_size, self.HeardByChild()), nullptr);
    if (!job.ok()) {
      std::fprintf(stderr, "rank %d: %s\n", rank, job.status().ToString().c_str());
      _exit(1);
    }
    body(**job);
    while (true) pause();
  });
}

// Rank 0 in a process of its own: the test is the only other rank.
std::unique_ptr<ChildProcess> RankZeroProcess(const std::function<void(Job&)>& body) {
  return std::make_unique<ChildProcess>([&](ChildProcess& self) {
    const JobOr job = JoinJob(Options(0, 2), [&](const JobAddress& address) {
      self.TellParent(address.port);
      return absl::OkStatus();
    });
    if (!job.ok()) _exit(1);
    body(**job);
    while (true) pause();
  });
}

JobOr JoinAsRankZero(int32_t world_size,
                     const std::vector<std::unique_ptr<ChildProcess>>& processes) {
  return JoinJob(Options(0, world_size), [&](const JobAddress& address) {
    for (const std::unique_ptr<ChildProcess>& process : processes) {
      process->TellChild(address.port);
    }
    return absl::OkStatus();
  });
}

// That `call` returns within kAtOnce with this code, and names each of `words`.
void ExpectError(const std::function<absl::Status()>& call, absl::StatusCode code,
                 const std::vector<std::string>& words) {
  const absl::Time begin = absl::Now();
  const absl::Status status = call();
  EXPECT_LT(absl::Now() - begin, kAtOnce) << status;
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& word : words) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

constexpr absl::StatusCode kDeadline = absl::StatusCode::kDeadlineExceeded;
constexpr absl::StatusCode kUnavailable = absl::StatusCode::kUnavailable;

// A plain TCP client, to say what no rank would.
FileDescriptor Dial(const JobAddress& address) {
  const absl::StatusOr<std::vector<SocketAddress>> resolved = Resolve(address.host, address.port);
  EXPECT_TRUE(resolved.ok());
  absl::StatusOr<FileDescriptor> socket = Connect(resolved->front(), Deadline::In(kPatience));
  EXPECT_TRUE(socket.ok()) << socket.status();
  return *std::move(socket);
}

void Say(const FileDescriptor& socket, absl::string_view bytes) {
  EXPECT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

// That the other side ends the connection instead of leaving it open.
void ExpectDropped(const FileDescriptor& socket) {
  pollfd item = {socket.get(), POLLIN, 0};
  EXPECT_EQ(poll(&item, 1, 4500), 1);
  char byte = 0;
  EXPECT_LE(recv(socket.get(), &byte, 1, 0), 0);
}

// The first message of a rank, as bytes.
std::string Hello(int32_t rank, int32_t world_size) {
  BodyWriter body;
  body.Number(rank).Number(world_size).Text(kSecret);
  const std::string text = body.Take();
  std::string bytes("SPJ\x01\x01\0\0\0\0\0\0\0\0\0\0\0", 16);
  bytes += static_cast<char>(text.size());
  bytes.append(7, '\0');
  return bytes + text;
}

TEST(JobTest, ValuesReachEveryRank) {
  const Jobs jobs = JoinAll(3);
  for (int32_t setter = 0; setter < 3; ++setter) {
    const std::string key = absl::StrCat("key of ", setter);
    const std::string value = absl::StrCat("value\0 of ", setter, std::string(1, '\0'));
    for (const std::unique_ptr<Job>& job : jobs) EXPECT_EQ(*job->Get(key), std::nullopt);
    ASSERT_TRUE(jobs[setter]->Set(key, "an earlier one").ok());
    ASSERT_TRUE(jobs[setter]->Set(key, value).ok());
    // Its own messages are in order, so that rank itself sees the new one at once.
    EXPECT_EQ(*jobs[setter]->Get(key), value);
    for (const std::unique_ptr<Job>& job : jobs) {
      EXPECT_EQ(*job->Await(key, "a rank", kPatience), value);
      EXPECT_EQ(*job->Get(key), value);
    }
  }
  ASSERT_TRUE(jobs[1]->Set("", "").ok());
  EXPECT_EQ(*jobs[2]->Await("", "rank 1", kPatience), "");
}

TEST(JobTest, RanksAndSizesAreThoseOfTheOptions) {
  const Jobs jobs = JoinAll(3);
  for (int32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(jobs[rank]->rank(), Rank{rank});
    EXPECT_EQ(jobs[rank]->world_size(), WorldSize{3});
    EXPECT_THAT(*jobs[rank]->GoneRanks(), IsEmpty());
  }
}

TEST(JobTest, ManyValuesStayInOrder) {
  const Jobs jobs = JoinAll(2);
  constexpr int kValues = 20000;
  for (int i = 0; i < kValues; ++i) ASSERT_TRUE(jobs[1]->Set("i", absl::StrCat(i)).ok());
  ASSERT_TRUE(jobs[1]->Set("done", "").ok());
  ASSERT_TRUE(jobs[0]->Await("done", "rank 1", kPatience).ok());
  EXPECT_EQ(*jobs[0]->Get("i"), absl::StrCat(kValues - 1));
}

TEST(JobTest, LongValuesAreWhole) {
  const Jobs jobs = JoinAll(2);
  const std::string value(16 << 20, 'v');
  ASSERT_TRUE(jobs[1]->Set("long", value).ok());
  EXPECT_EQ(*jobs[0]->Await("long", "rank 1", kPatience), value);
  EXPECT_EQ(*jobs[1]->Get("long"), value);
}

TEST(JobTest, TextsBeyondTheirLimitsAreRefused) {
  Jobs jobs = JoinAll(2);
  jobs.push_back(*JoinJob(Options(0, 1), nullptr));
  const std::string long_key(65537, 'k');
  const std::string long_value((16 << 20) + 1, 'v');
  for (const std::unique_ptr<Job>& job : jobs) {
    const auto refused = [](const absl::Status& status, const char* size) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(size));
    };
    refused(job->Set(long_key, ""), "65537 bytes; accepted: up to 65536");
    refused(job->Set("key", long_value), "16777217 bytes; accepted: up to 16777216");
    refused(job->Get(long_key).status(), "65537");
    refused(job->Await(long_key, "rank 0", kShort).status(), "65537");
    refused(job->Await("key", long_key, kShort).status(), "65537");
    EXPECT_TRUE(job->Set("key", "still works").ok());
  }
}

TEST(JobTest, AwaitEndsWhenTheValueComes) {
  const Jobs jobs = JoinAll(3);
  for (const auto& [waiter, setter] : {std::pair(0, 1), std::pair(1, 0), std::pair(2, 1)}) {
    const std::string key = absl::StrCat("from ", setter, " to ", waiter);
    std::future<absl::StatusOr<std::string>> value = std::async(
        std::launch::async, [&] { return jobs[waiter]->Await(key, "the other", kPatience); });
    absl::SleepFor(absl::Milliseconds(50));
    // A second thread of the waiting process is served meanwhile.
    EXPECT_EQ(*jobs[waiter]->Get(key), std::nullopt);
    ASSERT_TRUE(jobs[setter]->Set(key, "value").ok());
    EXPECT_EQ(*value.get(), "value");
  }
}

TEST(JobTest, AwaitThatTimesOutNamesKeyAndSetter) {
  Jobs jobs = JoinAll(4);
  for (const std::unique_ptr<Job>& job : jobs) {
    ExpectError([&] { return job->Await("plan hash", "rank 3", kShort).status(); }, kDeadline,
                {"\"plan hash\"", "rank 3", "300ms"});
    ExpectError([&] { return job->Await("k", "w", absl::ZeroDuration()).status(); }, kDeadline,
                {"\"k\""});
  }
  jobs[2].reset();
  // Rank 2 is named although it was not waited for. Its end may not be known at once.
  while (jobs[0]->GoneRanks()->empty()) absl::SleepFor(absl::Milliseconds(1));
  jobs.erase(jobs.begin() + 2);
  for (const std::unique_ptr<Job>& job : jobs) {
    ExpectError([&] { return job->Await("plan hash", "rank 3", kShort).status(); }, kDeadline,
                {"\"plan hash\"", "rank 3", "rank 2 is gone"});
    EXPECT_THAT(*job->GoneRanks(), ElementsAre(Rank{2}));
  }
}

TEST(JobTest, AwaitOfAKilledRankEndsAtOnce) {
  std::vector<std::unique_ptr<ChildProcess>> processes;
  processes.push_back(RankProcess(1, 3, [](Job& job) { (void)job.Set("set by 1", "value"); }));
  // Rank 2 waits for rank 1 as well, and tells what it got.
  processes.push_back(RankProcess(2, 3, [](Job& job) {
    const absl::Status status = job.Await("never", "rank 1", kPatience).status();
    (void)job.Set("what 2 got", status.ToString());
  }));
  const JobOr job = JoinAsRankZero(3, processes);
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE((*job)->Await("set by 1", "rank 1", kPatience).ok());

  processes[0]->Signal(SIGKILL);
  ExpectError([&] { return (*job)->Await("never", "rank 1", kPatience).status(); }, kUnavailable,
              {"rank 1 is gone", "\"never\""});
  const absl::StatusOr<std::string> of_2 = (*job)->Await("what 2 got", "rank 2", kAtOnce);
  ASSERT_TRUE(of_2.ok()) << of_2.status();
  EXPECT_THAT(*of_2, HasSubstr("UNAVAILABLE: rank 1 is gone"));

  // What it had set is there; another rank may still set what it was not asked for.
  EXPECT_EQ(*(*job)->Await("set by 1", "rank 1", kPatience), "value");
  ExpectError([&] { return (*job)->Await("never", "rank 2", kShort).status(); }, kDeadline,
              {"rank 2", "rank 1 is gone"});
  EXPECT_THAT(*(*job)->GoneRanks(), ElementsAre(Rank{1}));

  processes[1]->Signal(SIGKILL);
  ExpectError([&] { return (*job)->Await("never", "some rank", kPatience).status(); }, kUnavailable,
              {"ranks 1, 2 are gone", "\"never\"", "some rank"});
}

TEST(JobTest, GatherBringsBytesOfAllSizesInRankOrder) {
  const Jobs jobs = JoinAll(4);
  constexpr size_t kSizes[] = {3, 0, 64 << 20, 70000};
  for (int round = 0; round < 2; ++round) {
    const auto bytes_of = [&](int rank) {
      std::string bytes(kSizes[(rank + round) % 4], static_cast<char>('a' + rank));
      if (!bytes.empty()) bytes.back() = static_cast<char>('0' + round);
      return bytes;
    };
    std::vector<std::future<absl::StatusOr<std::vector<std::string>>>> others;
    for (int rank = 1; rank < 4; ++rank) {
      others.push_back(std::async(
          std::launch::async, [&, rank] { return jobs[rank]->Gather(bytes_of(rank), kPatience); }));
    }
    const absl::StatusOr<std::vector<std::string>> all = jobs[0]->Gather(bytes_of(0), kPatience);
    ASSERT_TRUE(all.ok()) << all.status();
    ASSERT_EQ(all->size(), 4u);
    for (int rank = 0; rank < 4; ++rank) {
      // Not EXPECT_EQ, which would print them.
      EXPECT_TRUE((*all)[rank] == bytes_of(rank)) << "rank " << rank << " round " << round;
    }
    for (auto& other : others) {
      const absl::StatusOr<std::vector<std::string>> nothing = other.get();
      ASSERT_TRUE(nothing.ok()) << nothing.status();
      EXPECT_THAT(*nothing, IsEmpty());
    }
  }
}

TEST(JobTest, RanksMayRunAheadInGathers) {
  const Jobs jobs = JoinAll(2);
  for (const char* bytes : {"first", "second", "third"}) {
    ASSERT_TRUE(jobs[1]->Gather(bytes, kPatience).ok());
  }
  for (const char* bytes : {"first", "second", "third"}) {
    EXPECT_THAT(*jobs[0]->Gather("own", kPatience), ElementsAre("own", bytes));
  }
}

TEST(JobTest, PiecesArriveAsOne) {
  const Jobs jobs = JoinAll(2);
  // Many small ones, none, and some that the socket takes only in parts.
  std::vector<std::string> owned;
  for (int i = 0; i < 1000; ++i) owned.push_back(absl::StrCat("piece ", i, ";"));
  owned.push_back("");
  for (int i = 0; i < 3; ++i) owned.emplace_back((9 << 20) + i, static_cast<char>('a' + i));
  const std::vector<absl::string_view> pieces(owned.begin(), owned.end());
  auto other = std::async(std::launch::async,
                          [&] { return jobs[1]->GatherPieces(pieces, kPatience).status(); });
  const auto all = jobs[0]->GatherPieces({"o", "wn"}, kPatience);
  EXPECT_TRUE(other.get().ok());
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0], "own");
  EXPECT_TRUE((*all)[1] == absl::StrJoin(owned, ""));
}

TEST(JobTest, PiecesMayChangeWhenAGatherHasTimedOut) {
  constexpr size_t kBytes = 32 << 20;
  const std::unique_ptr<ChildProcess> zero = RankZeroProcess([](Job& job) {
    const auto all = job.Gather("", kPatience);
    const bool whole = all.ok() && (*all)[1] == std::string(kBytes, 'x') + "end";
    (void)job.Set("what arrived", whole ? "what was given" : "something else");
  });
  const JobOr job = JoinJob(Options(1, 2, zero->HeardByParent()), nullptr);
  ASSERT_TRUE(job.ok()) << job.status();
  zero->Signal(SIGSTOP);
  std::string bytes(kBytes, 'x');
  std::string end = "end";
  ExpectError(
      [&] {
        return (*job)->GatherPieces({bytes, end}, kShort).status();
      },
      kDeadline, {"rank 0 does not answer", "33554435 bytes"});
  bytes.assign(kBytes, 'y');
  end = "END";
  zero->Signal(SIGCONT);
  EXPECT_EQ(*(*job)->Await("what arrived", "rank 0", kPatience), "what was given");
}

TEST(JobTest, AGatherFillsTheMemoryOfOneBefore) {
  const Jobs jobs = JoinAll(2);
  const void* first = nullptr;
  size_t round = 0;
  // Shorter, and as long again; a short message between them does not take it.
  for (const size_t size : {size_t{8 << 20}, size_t{5 << 20}, size_t{8 << 20}}) {
    const std::string bytes(size, static_cast<char>('a' + round++));
    auto other =
        std::async(std::launch::async, [&] { return jobs[1]->Gather(bytes, kPatience).status(); });
    absl::StatusOr<std::vector<std::string>> all = jobs[0]->Gather("", kPatience);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_TRUE(other.get().ok());
    EXPECT_TRUE((*all)[1] == bytes) << round;
    if (first == nullptr) first = (*all)[1].data();
    EXPECT_EQ(static_cast<const void*>((*all)[1].data()), first) << round;
    jobs[0]->Reuse(*std::move(all));
    ASSERT_TRUE(jobs[1]->Gather("short", kPatience).ok());
    EXPECT_THAT(*jobs[0]->Gather("", kPatience), ElementsAre("", "short"));
  }
}

TEST(JobTest, GatherWithoutARankNamesItAndTheNextOneWorks) {
  const Jobs jobs = JoinAll(4);
  ASSERT_TRUE(jobs[2]->Gather("2", kPatience).ok());
  ExpectError([&] { return jobs[0]->Gather("0", kShort).status(); }, kDeadline,
              {"ranks 1, 3 gave nothing", "300ms"});
  // Too late, and said so; their bytes are not taken for the next gather's.
  for (const int rank : {1, 3}) {
    ExpectError([&] { return jobs[rank]->Gather("late", kPatience).status(); }, kDeadline,
                {absl::StrCat("rank ", rank, " came too late")});
  }
  for (const int rank : {1, 2, 3}) ASSERT_TRUE(jobs[rank]->Gather("next", kPatience).ok());
  EXPECT_THAT(*jobs[0]->Gather("own", kPatience), ElementsAre("own", "next", "next", "next"));
}

TEST(JobTest, GatherWithAKilledRankEndsAtOnce) {
  std::vector<std::unique_ptr<ChildProcess>> processes;
  for (int32_t rank = 1; rank < 4; ++rank) {
    processes.push_back(RankProcess(rank, 4, [rank](Job& job) {
      (void)job.Set(absl::StrCat("here ", rank), "");
      if (rank == 1) (void)job.Gather("1", kPatience);
      if (rank == 1) (void)job.Set("1 gave", "");
    }));
  }
  const JobOr job = JoinAsRankZero(4, processes);
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE((*job)->Await("1 gave", "rank 1", kPatience).ok());
  ASSERT_TRUE((*job)->Await("here 3", "rank 3", kPatience).ok());

  std::thread killer([&] {
    absl::SleepFor(absl::Milliseconds(100));
    processes[0]->Signal(SIGKILL);  // It gave before: it is not missed.
    processes[2]->Signal(SIGKILL);
  });
  const absl::StatusOr<std::vector<std::string>> all = [&] {
    absl::StatusOr<std::vector<std::string>> result = absl::UnknownError("not called");
    ExpectError(
        [&] {
          result = (*job)->Gather("0", kPatience);
          return result.status();
        },
        kUnavailable, {"rank 3 is gone"});
    return result;
  }();
  EXPECT_THAT(std::string(all.status().message()), Not(HasSubstr("1,")));
  killer.join();
}

TEST(JobTest, AStoppedRankIsNamedWhenTheTimeIsOver) {
  std::vector<std::unique_ptr<ChildProcess>> processes;
  for (int32_t rank = 1; rank < 3; ++rank) {
    processes.push_back(RankProcess(rank, 3, [](Job& job) {
      (void)job.Await("go on", "rank 0", kPatience);
      (void)job.Gather("bytes", kPatience);
    }));
  }
  const JobOr job = JoinAsRankZero(3, processes);
  ASSERT_TRUE(job.ok()) << job.status();
  processes[1]->Signal(SIGSTOP);
  ASSERT_TRUE((*job)->Set("go on", "").ok());
  ExpectError([&] { return (*job)->Gather("0", absl::Seconds(1)).status(); }, kDeadline,
              {"rank 2 gave nothing"});
  EXPECT_THAT(*(*job)->GoneRanks(), IsEmpty());
}

TEST(JobTest, WhenRankZeroIsKilledTheOthersSaySo) {
  const std::unique_ptr<ChildProcess> zero = RankZeroProcess([](Job&) {});
  const JobOr job = JoinJob(Options(1, 2, zero->HeardByParent()), nullptr);
  ASSERT_TRUE(job.ok()) << job.status();
  std::thread killer([&] {
    absl::SleepFor(absl::Milliseconds(100));
    zero->Signal(SIGKILL);
  });
  ExpectError([&] { return (*job)->Await("never", "rank 0", kPatience).status(); }, kUnavailable,
              {"rank 0 is gone"});
  killer.join();
  const std::vector<std::string> words = {"rank 0 is gone"};
  ExpectError([&] { return (*job)->Await("k", "rank 0", kPatience).status(); }, kUnavailable,
              words);
  ExpectError([&] { return (*job)->Set("k", "v"); }, kUnavailable, words);
  ExpectError([&] { return (*job)->Get("k").status(); }, kUnavailable, words);
  ExpectError([&] { return (*job)->Gather("b", kPatience).status(); }, kUnavailable, words);
  ExpectError([&] { return (*job)->GoneRanks().status(); }, kUnavailable, words);
}

TEST(JobTest, AStoppedRankZeroBlocksNobodyBeyondTheTime) {
  const std::unique_ptr<ChildProcess> zero = RankZeroProcess([](Job&) {});
  const JobOr job = JoinJob(Options(1, 2, zero->HeardByParent()), nullptr);
  ASSERT_TRUE(job.ok()) << job.status();
  zero->Signal(SIGSTOP);
  ExpectError([&] { return (*job)->Await("key", "rank 0", kShort).status(); }, kDeadline,
              {"rank 0 does not answer", "\"key\""});
  ExpectError([&] { return (*job)->Gather(std::string(32 << 20, 'x'), kShort).status(); },
              kDeadline, {"rank 0 does not answer", "33554432 bytes"});
  // Setting never waits; what cannot leave is bounded.
  const std::string value(8 << 20, 'v');
  ExpectError(
      [&] {
        absl::Status status;
        for (int i = 0; i < 100 && status.ok(); ++i) status = (*job)->Set("key", value);
        return status;
      },
      kUnavailable, {"rank 0 does not read", "bytes wait"});
}

TEST(JobTest, WhatRanksSentBeforeTheyEndedArrives) {
  Jobs jobs = JoinAll(3);
  const std::string value(4 << 20, 'v');
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(jobs[1]->Set(absl::StrCat(i), value).ok());
  jobs[1].reset();
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(*jobs[0]->Await(absl::StrCat(i), "rank 1", kPatience) == value);
  }
  // The same from rank 0: the reply to a gather leaves before the end.
  std::future<absl::Status> gave =
      std::async(std::launch::async, [&] { return jobs[2]->Gather(value, kPatience).status(); });
  ExpectError([&] { return jobs[0]->Gather("", kPatience).status(); }, kUnavailable,
              {"rank 1 is gone"});
  jobs[0].reset();
  (void)gave.get();  // Taken or too late, as it comes; what counts is that it ends.
  ExpectError([&] { return jobs[2]->Get("k").status(); }, kUnavailable, {"rank 0 is gone"});
  ExpectError([&] { return jobs[2]->Set("k", "v"); }, kUnavailable, {"rank 0 is gone"});
}

TEST(JobTest, SignalsDoNotDisturbCalls) {
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = [](int) {};  // Without SA_RESTART: system calls end with EINTR.
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const itimerval often = {{0, 500}, {0, 500}};
  const itimerval never = {};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  {
    const Jobs jobs = JoinAll(3);
    for (int i = 0; i < 300; ++i) {
      const std::string key = absl::StrCat(i);
      ASSERT_TRUE(jobs[1]->Set(key, key).ok());
      EXPECT_EQ(*jobs[2]->Await(key, "rank 1", kPatience), key);
    }
    ASSERT_TRUE(jobs[1]->Gather(std::string(8 << 20, 'g'), kPatience).ok());
    ASSERT_TRUE(jobs[2]->Gather("", kPatience).ok());
    EXPECT_EQ(jobs[0]->Gather("", kPatience)->at(1).size(), size_t{8 << 20});
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

TEST(JoinJobTest, OneRankNeedsNoSocket) {
  const JobOr job = JoinJob(Options(0, 1, {"no such host", 1}), [](const JobAddress&) {
    return absl::InternalError("nothing is bound");
  });
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ((*job)->rank(), Rank{0});
  EXPECT_EQ((*job)->world_size(), WorldSize{1});
  EXPECT_EQ(*(*job)->Get("key"), std::nullopt);
  ExpectError([&] { return (*job)->Await("key", "rank 0", kShort).status(); }, kDeadline,
              {"\"key\"", "rank 0"});
  EXPECT_TRUE((*job)->Set("key", "value").ok());
  EXPECT_EQ(*(*job)->Get("key"), "value");
  EXPECT_EQ(*(*job)->Await("key", "rank 0", kShort), "value");
  EXPECT_THAT(*(*job)->Gather("bytes", kShort), ElementsAre("bytes"));
  EXPECT_THAT(*(*job)->GoneRanks(), IsEmpty());
}

TEST(JoinJobTest, OptionsOutOfRangeAreRefused) {
  const auto refused = [](JobOptions options, const char* accepted) {
    ExpectError([&] { return JoinJob(options, nullptr).status(); },
                absl::StatusCode::kInvalidArgument, {accepted});
  };
  refused(Options(0, 0), "a job of 0 ranks; accepted: 1 or more");
  refused(Options(-1, 2), "rank -1 of 2; accepted: 0 to 1");
  refused(Options(2, 2), "rank 2 of 2; accepted: 0 to 1");
  refused(Options(0, 2, {kLoopback, -1}), "port -1 for rank 0; accepted: 0 to 65535");
  refused(Options(0, 2, {kLoopback, 65536}), "port 65536");
  refused(Options(1, 2, {kLoopback, 0}), "port 0 for rank 1; accepted: 1 to 65535");
  refused(Options(1, 2, {"", 1}), "no host");
  refused(Options(0, 2, {"no such host", 0}), "\"no such host\"");
  refused(Options(1, 2, {"no such host", 1}), "\"no such host\"");
  JobOptions options = Options(0, 2);
  options.secret.assign(4097, 's');
  refused(options, "4097 bytes; accepted: up to 4096");
}

TEST(JoinJobTest, TheErrorOfBoundIsReturned) {
  ExpectError(
      [] {
        return JoinJob(Options(0, 2),
                       [](const JobAddress& address) {
                         EXPECT_EQ(address.host, kLoopback);
                         EXPECT_GT(address.port, 0);
                         return absl::DataLossError("cannot tell the others");
                       })
            .status();
      },
      absl::StatusCode::kDataLoss, {"cannot tell the others"});
}

TEST(JoinJobTest, RankZeroNamesWhoDidNotJoinAndTellsWhoDid) {
  JobOptions options = Options(0, 4);
  options.timeout = absl::Seconds(1);
  RankZero zero = StartRankZero(options);
  std::future<JobOr> two = StartOther(Options(2, 4, zero.address));
  const std::vector<std::string> words = {"ranks 1, 3 did not join", "1s"};
  ExpectError([&] { return zero.job.get().status(); }, kDeadline, words);
  ExpectError([&] { return two.get().status(); }, kDeadline, words);
}

TEST(JoinJobTest, ARankThatJoinsNamesWhatItWaitedFor) {
  RankZero zero = StartRankZero(Options(0, 3));
  JobOptions options = Options(1, 3, zero.address);
  options.timeout = kShort;
  ExpectError([&] { return JoinJob(options, nullptr).status(); }, kDeadline,
              {"rank 1 joined", "not all 3 ranks", "300ms"});
  // It gave up before the start: its place is free again.
  std::future<JobOr> one = StartOther(Options(1, 3, zero.address));
  std::future<JobOr> two = StartOther(Options(2, 3, zero.address));
  for (std::future<JobOr>* job : {&zero.job, &one, &two}) {
    const JobOr joined = job->get();
    EXPECT_TRUE(joined.ok()) << joined.status();
  }
}

TEST(JoinJobTest, AnAddressThatDoesNotAnswerIsNamed) {
  const absl::StatusOr<FileDescriptor> listener = Listen(kLoopback, 0);
  ASSERT_TRUE(listener.ok()) << listener.status();
  JobOptions options = Options(1, 2, {kLoopback, *PortOf(*listener)});
  options.timeout = kShort;
  const std::string address = absl::StrCat("127.0.0.1:", options.address.port);
  // A program that accepts and is silent.
  ExpectError([&] { return JoinJob(options, nullptr).status(); }, kDeadline,
              {"rank 1 found no rank 0", address, "300ms", "no answer"});
  // One that talks about something else.
  std::thread stranger([&] {
    for (int i = 0; i < 2; ++i) {
      absl::StatusOr<std::optional<FileDescriptor>> socket = Accept(*listener);
      if (socket.ok() && socket->has_value()) {
        Say(**socket, "HTTP/1.1 400 Bad Request, and more words than a header has\r\n");
      }
      absl::SleepFor(absl::Milliseconds(100));
    }
  });
  ExpectError([&] { return JoinJob(options, nullptr).status(); }, kDeadline, {address});
  stranger.join();
}

TEST(JoinJobTest, NobodyAtTheAddressIsNamed) {
  JobOptions options = Options(1, 2);
  {
    const absl::StatusOr<FileDescriptor> listener = Listen(kLoopback, 0);
    options.address.port = *PortOf(*listener);
  }
  options.timeout = kShort;
  ExpectError([&] { return JoinJob(options, nullptr).status(); }, kDeadline,
              {absl::StrCat("127.0.0.1:", options.address.port), "onnection refused"});
}

TEST(JoinJobTest, AHeldPortIsNamed) {
  const absl::StatusOr<FileDescriptor> listener = Listen(kLoopback, 0);
  const int32_t port = *PortOf(*listener);
  ExpectError(
      [&] {
        return JoinJob(Options(0, 2, {kLoopback, port}), nullptr).status();
      },
      absl::StatusCode::kAlreadyExists, {absl::StrCat("127.0.0.1:", port)});
}

TEST(JoinJobTest, RanksMayComeBeforeRankZero) {
  JobOptions options = Options(0, 2);
  {
    const absl::StatusOr<FileDescriptor> listener = Listen(kLoopback, 0);
    options.address.port = *PortOf(*listener);
  }
  std::future<JobOr> one = StartOther(Options(1, 2, options.address));
  absl::SleepFor(kShort);
  const JobOr zero = JoinJob(options, nullptr);
  EXPECT_TRUE(zero.ok()) << zero.status();
  EXPECT_TRUE(one.get().ok());
}

TEST(JoinJobTest, WhoDoesNotBelongIsToldWhyAndDoesNoHarm) {
  RankZero zero = StartRankZero(Options(0, 3));
  JobOptions wrong = Options(1, 3, zero.address);
  wrong.secret = "secret of another job";
  ExpectError([&] { return JoinJob(wrong, nullptr).status(); }, absl::StatusCode::kPermissionDenied,
              {"secret", absl::StrCat(zero.address.port)});
  wrong = Options(1, 4, zero.address);
  ExpectError([&] { return JoinJob(wrong, nullptr).status(); },
              absl::StatusCode::kFailedPrecondition, {"there are 4 ranks", "was told 3"});

  std::future<JobOr> two = StartOther(Options(2, 3, zero.address));
  // The first to come is rank 2, whichever of the two that is; the other is refused.
  std::future<JobOr> again = StartOther(Options(2, 3, zero.address));
  absl::SleepFor(kShort);
  std::future<JobOr> one = StartOther(Options(1, 3, zero.address));
  const JobOr both[] = {two.get(), again.get()};
  const bool first = both[0].ok();
  EXPECT_TRUE(both[first ? 0 : 1].ok()) << both[first ? 0 : 1].status();
  ExpectError([&] { return both[first ? 1 : 0].status(); }, absl::StatusCode::kAlreadyExists,
              {"rank 2"});
  const JobOr job = zero.job.get();
  ASSERT_TRUE(job.ok()) << job.status();
  // After the start as well.
  ExpectError([&] { return JoinJob(Options(1, 3, zero.address), nullptr).status(); },
              absl::StatusCode::kAlreadyExists, {"rank 1"});
  EXPECT_TRUE(one.get().ok());
}

TEST(JoinJobTest, StrangersAreDroppedWithoutHarm) {
  RankZero zero = StartRankZero(Options(0, 2));
  const FileDescriptor silent = Dial(zero.address);
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(Dial(zero.address));
  const FileDescriptor web = Dial(zero.address);
  Say(web, "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n");
  // Our format, but a length beyond all limits; and another message than the first.
  const FileDescriptor huge = Dial(zero.address);
  Say(huge, absl::string_view("SPJ\x01\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\0\0", 24));
  const FileDescriptor early = Dial(zero.address);
  Say(early, absl::string_view("SPJ\x01\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24));
  const JobOr one = JoinJob(Options(1, 2, zero.address), nullptr);
  ASSERT_TRUE(one.ok()) << one.status();
  const JobOr job = zero.job.get();
  ASSERT_TRUE(job.ok()) << job.status();

  const FileDescriptor late = Dial(zero.address);
  Say(late, "some words that are longer than a header is");
  // The oldest of the many silent ones had to make room.
  for (const FileDescriptor* const socket : {&web, &huge, &early, &late, &silent}) {
    ExpectDropped(*socket);
  }
  ASSERT_TRUE((*one)->Set("key", "value").ok());
  EXPECT_EQ(*(*job)->Await("key", "rank 1", kPatience), "value");
  EXPECT_THAT(*(*job)->GoneRanks(), IsEmpty());
}

TEST(JoinJobTest, ASilentStrangerIsDroppedInTime) {
  RankZero zero = StartRankZero(Options(0, 2));
  ExpectDropped(Dial(zero.address));
  EXPECT_TRUE(JoinJob(Options(1, 2, zero.address), nullptr).ok());
  EXPECT_TRUE(zero.job.get().ok());
}

TEST(JoinJobTest, ARankThatBreaksTheFormatIsRefusedOrGone) {
  RankZero zero = StartRankZero(Options(0, 2));
  // No rank of this job, though it knows the secret: it does not count as joined.
  for (const int32_t rank : {-1, 0, 2}) {
    const FileDescriptor socket = Dial(zero.address);
    Say(socket, Hello(rank, 2));
    pollfd item = {socket.get(), POLLIN, 0};
    ASSERT_EQ(poll(&item, 1, 3000), 1);
    char reply[512] = "";
    const ssize_t size = recv(socket.get(), reply, sizeof(reply), 0);
    ASSERT_GT(size, 24);
    EXPECT_THAT(std::string(reply, size), HasSubstr(absl::StrCat("rank ", rank)));
    ExpectDropped(socket);
  }
  const FileDescriptor one = Dial(zero.address);
  Say(one, Hello(1, 2));
  const JobOr job = zero.job.get();
  ASSERT_TRUE(job.ok()) << job.status();
  // A kSet whose body has 4 bytes.
  Say(one, absl::string_view("SPJ\x01\x05\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0abcd", 28));
  ExpectError([&] { return (*job)->Await("key", "rank 1", kPatience).status(); }, kUnavailable,
              {"rank 1 is gone"});
}

TEST(JoinJobTest, AnEmptyHostIsAllInterfaces) {
  RankZero zero = StartRankZero(Options(0, 3, {"", 0}));
  EXPECT_NE(zero.address.host, "");
  std::future<JobOr> one = StartOther(Options(1, 3, zero.address));
  std::future<JobOr> two = StartOther(Options(2, 3, {kLoopback, zero.address.port}));
  for (std::future<JobOr>* job : {&zero.job, &one, &two}) {
    const JobOr joined = job->get();
    EXPECT_TRUE(joined.ok()) << joined.status();
  }
}

TEST(JoinJobTest, Ipv6) {
  if (!Listen("::1", 0).ok()) GTEST_SKIP() << "this machine has no IPv6";
  const Jobs jobs = JoinAll(2, {"::1", 0});
  ASSERT_TRUE(jobs[1]->Set("key", "value").ok());
  EXPECT_EQ(*jobs[0]->Await("key", "rank 1", kPatience), "value");
}

// What torchrun's agent gives, and the agent's listener: its port, and by that the job's name, is
// nobody else's.
struct Agent {
  FileDescriptor listener;
  LaunchEnvironment environment;
};

Agent StartAgent(int32_t world_size) {
  Agent agent;
  absl::StatusOr<FileDescriptor> listener = Listen(kLoopback, 0);
  // Leave room for the ports after it.
  while (listener.ok() && *PortOf(*listener) > 65000) listener = Listen(kLoopback, 0);
  EXPECT_TRUE(listener.ok()) << listener.status();
  agent.listener = *std::move(listener);
  agent.environment.launcher = Launcher::kTorchrun;
  agent.environment.world_size = WorldSize{world_size};
  agent.environment.local_world_size = world_size;
  agent.environment.master_address = kLoopback;
  agent.environment.master_port = *PortOf(agent.listener);
  agent.environment.run_id = "none";
  return agent;
}

std::vector<std::future<JobOr>> StartTorchrun(LaunchEnvironment environment,
                                              absl::Duration timeout) {
  std::vector<std::future<JobOr>> ranks;
  for (int32_t rank = 0; rank < environment.world_size.value; ++rank) {
    environment.rank = Rank{rank};
    environment.local_rank = rank;
    ranks.push_back(std::async(std::launch::async, [environment, timeout] {
      return JoinTorchrunJob(environment, timeout);
    }));
  }
  return ranks;
}

Jobs JobsOf(std::vector<std::future<JobOr>> ranks) {
  Jobs jobs;
  for (std::future<JobOr>& rank : ranks) {
    JobOr job = rank.get();
    EXPECT_TRUE(job.ok()) << job.status();
    jobs.push_back(job.ok() ? *std::move(job) : nullptr);
  }
  return jobs;
}

// That a value goes from the last rank to all.
void ExpectTogether(const Jobs& jobs, const std::string& value) {
  for (const std::unique_ptr<Job>& job : jobs) ASSERT_NE(job, nullptr);
  ASSERT_TRUE(jobs.back()->Set("key", value).ok());
  for (const std::unique_ptr<Job>& job : jobs) {
    EXPECT_EQ(*job->Await("key", "the last rank", kPatience), value);
  }
}

TEST(JoinTorchrunJobTest, RanksMeetAfterTheAgentsPort) {
  const Agent agent = StartAgent(3);
  ExpectTogether(JobsOf(StartTorchrun(agent.environment, kPatience)), "value");
}

TEST(JoinTorchrunJobTest, PortsOfOtherProgramsArePassedOver) {
  const Agent agent = StartAgent(2);
  // They accept and say nothing. A port may be another program's already.
  const absl::StatusOr<FileDescriptor> first = Listen(kLoopback, agent.environment.master_port + 1);
  const absl::StatusOr<FileDescriptor> second =
      Listen(kLoopback, agent.environment.master_port + 2);
  ExpectTogether(JobsOf(StartTorchrun(agent.environment, kPatience)), "value");
}

TEST(JoinTorchrunJobTest, SeveralJobsOnOneMachineKeepApart) {
  // Neighbours that look for each other's ports, with equal ids and sizes.
  Agent agent = StartAgent(2);
  std::vector<std::vector<std::future<JobOr>>> started;
  std::vector<std::string> values;
  for (int job = 0; job < 3; ++job) {
    LaunchEnvironment environment = agent.environment;
    environment.master_port += job;
    values.push_back(absl::StrCat("job ", job));
    started.push_back(StartTorchrun(environment, kPatience));
  }
  // And one that differs in its id alone.
  LaunchEnvironment other_id = agent.environment;
  other_id.run_id = "another";
  values.push_back("another");
  started.push_back(StartTorchrun(other_id, kPatience));

  std::vector<Jobs> jobs;
  for (auto& ranks : started) jobs.push_back(JobsOf(std::move(ranks)));
  for (size_t job = 0; job < jobs.size(); ++job) ExpectTogether(jobs[job], values[job]);
  for (size_t job = 0; job < jobs.size(); ++job) {
    EXPECT_EQ(*jobs[job][0]->Get("key"), values[job]);
  }
}

TEST(JoinTorchrunJobTest, SeveralMachinesMeetOnAllInterfaces) {
  Agent agent = StartAgent(2);
  agent.environment.local_world_size = 1;
  ExpectTogether(JobsOf(StartTorchrun(agent.environment, kPatience)), "value");
}

TEST(JoinTorchrunJobTest, NoFreePortIsAnError) {
  const Agent agent = StartAgent(2);
  std::vector<absl::StatusOr<FileDescriptor>> listeners;
  for (int32_t port = 1; port <= 16; ++port) {
    listeners.push_back(Listen(kLoopback, agent.environment.master_port + port));
  }
  ExpectError([&] { return JoinTorchrunJob(agent.environment, kPatience).status(); }, kUnavailable,
              {"no free port", absl::StrCat(agent.environment.master_port + 1),
               absl::StrCat(agent.environment.master_port + 16), "MASTER_PORT"});
}

TEST(JoinTorchrunJobTest, AMissingRankZeroIsNamedWithAllPorts) {
  Agent agent = StartAgent(2);
  agent.environment.rank = Rank{1};
  ExpectError(
      [&] { return JoinTorchrunJob(agent.environment, kShort).status(); }, kDeadline,
      {"rank 1 found no rank 0", "127.0.0.1", absl::StrCat(agent.environment.master_port + 1),
       absl::StrCat(agent.environment.master_port + 16)});
}

TEST(JoinTorchrunJobTest, AnotherWorldSizeIsNamed) {
  Agent agent = StartAgent(2);
  std::vector<std::future<JobOr>> zero;
  zero.push_back(std::async(std::launch::async, [environment = agent.environment] {
    return JoinTorchrunJob(environment, absl::Seconds(1));
  }));
  agent.environment.rank = Rank{1};
  agent.environment.world_size = WorldSize{3};
  ExpectError([&] { return JoinTorchrunJob(agent.environment, kPatience).status(); },
              absl::StatusCode::kFailedPrecondition, {"there are 3 ranks", "was told 2"});
  ExpectError([&] { return zero[0].get().status(); }, kDeadline, {"rank 1 did not join"});
}

TEST(JoinTorchrunJobTest, OneRankNeedsNoPort) {
  const Agent agent = StartAgent(1);
  ExpectTogether(JobsOf(StartTorchrun(agent.environment, kPatience)), "value");
}

TEST(JoinTorchrunJobTest, OtherLaunchersAreRefused) {
  ExpectError([] { return JoinTorchrunJob(LaunchEnvironment{}, kPatience).status(); },
              absl::StatusCode::kInvalidArgument, {"launcher none", "accepted: torchrun"});
}

}  // namespace
}  // namespace shardproof
