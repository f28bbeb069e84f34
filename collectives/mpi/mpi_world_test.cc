// Ranks in processes of their own must give the bits that ranks in one process give, and a rank
// that is missing or calls something else must be named rather than waited for. Every rank of
// four runs all of this file, in step.
#include "collectives/mpi/mpi_world.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/mpi/mpi_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);

// A wait that is meant to end without success.
constexpr absl::Duration kShort = absl::Milliseconds(300);

// MPI starts once a process, so the tests share a world; main makes it.
MpiWorld* world = nullptr;

Rank Self() { return world->local_ranks()[0]; }
Group All() { return Group{0, 1, world->size().value}; }
Communicator& Of(Group group) { return **world->communicator(Self(), group); }

template <typename T>
constexpr Dtype kDtypeOf = sizeof(T) == 4 ? Dtype::kFloat32 : Dtype::kFloat64;

// Sums of these depend on the order in which they are added, in most elements.
template <typename T>
T Value(int32_t rank, int64_t index) {
  const uint64_t mixed = (rank + 1) * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u;
  const T mantissa = static_cast<T>(mixed >> 40) / T{3};
  return (mixed & 4 ? -mantissa : mantissa) * (mixed & 1 ? T{1e-6} : T{1});
}

CollectiveCall Call(CollectiveKind kind, Dtype dtype, int64_t elements, const void* send,
                    void* recv, int32_t label = -1) {
  CollectiveCall call;
  call.kind = kind;
  call.dtype = dtype;
  call.elements = elements;
  call.send = send;
  call.recv = recv;
  call.label = label;
  return call;
}

CollectiveCall Barrier(int32_t label = -1) {
  return Call(CollectiveKind::kBarrier, Dtype::kFloat32, 0, nullptr, nullptr, label);
}

absl::Status Complete(Communicator& communicator, const CollectiveCall& call) {
  const absl::StatusOr<CollectiveHandle> handle = communicator.Start(call);
  if (!handle.ok()) return handle.status();
  return communicator.Wait(*handle, kTimeout);
}

// So that no rank is late at a test's own waits because it is still in the test before.
void MeetAll() { ASSERT_TRUE(Complete(Of(All()), Barrier()).ok()); }

template <typename T>
std::vector<T> Values(int32_t rank, int64_t first, int64_t count) {
  std::vector<T> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = Value<T>(rank, first + i);
  return values;
}

template <typename T>
T Sum(Group group, int64_t index) {
  T sum = Value<T>(group.member(0).value, index);
  for (int32_t member = 1; member < group.count; ++member) {
    sum += Value<T>(group.member(member).value, index);
  }
  return sum;
}

template <typename T>
std::vector<T> Sums(Group group, int64_t first, int64_t count) {
  std::vector<T> sums(count);
  for (int64_t i = 0; i < count; ++i) sums[i] = Sum<T>(group, first + i);
  return sums;
}

// Buffers end in an element that nobody may write.
template <typename T>
std::vector<T> WithGuard(std::vector<T> values) {
  values.push_back(T{-77});
  return values;
}

// A trainer reuses a buffer as soon as its collective is done: nobody may still read it.
template <typename T>
void Reuse(std::vector<T>& buffer) {
  std::fill(buffer.begin(), buffer.end(), T{-99});
}

template <typename T>
void ExpectAllReduce(Group group, int64_t elements, bool in_place) {
  std::vector<T> send = WithGuard(Values<T>(Self().value, 0, elements));
  std::vector<T> recv = WithGuard(std::vector<T>(elements));
  const auto before = send;
  T* const to = in_place ? send.data() : recv.data();
  ASSERT_EQ(
      Complete(Of(group), Call(CollectiveKind::kAllReduce, kDtypeOf<T>, elements, send.data(), to)),
      absl::OkStatus());
  if (in_place) std::swap(send, recv);
  EXPECT_TRUE(in_place || send == before);
  Reuse(send);
  EXPECT_EQ(recv, WithGuard(Sums<T>(group, 0, elements)));
}

template <typename T>
void ExpectReduceScatter(Group group, int64_t part, bool in_place) {
  const int64_t elements = part * group.count;
  const int64_t own = (Self().value - group.first) / group.stride * part;
  std::vector<T> send = WithGuard(Values<T>(Self().value, 0, elements));
  std::vector<T> recv = WithGuard(std::vector<T>(part));
  T* const to = in_place ? send.data() + own : recv.data();
  ASSERT_EQ(Complete(Of(group),
                     Call(CollectiveKind::kReduceScatter, kDtypeOf<T>, elements, send.data(), to)),
            absl::OkStatus());
  if (in_place) recv = WithGuard(std::vector<T>(to, to + part));
  EXPECT_EQ(send.back(), T{-77});
  Reuse(send);
  EXPECT_EQ(recv, WithGuard(Sums<T>(group, own, part)));
}

template <typename T>
void ExpectAllGather(Group group, int64_t part, bool in_place) {
  const int64_t elements = part * group.count;
  const int64_t own = (Self().value - group.first) / group.stride * part;
  std::vector<T> send = Values<T>(Self().value, 0, part);
  std::vector<T> recv = WithGuard(std::vector<T>(elements, T{-1}));
  if (in_place) std::copy(send.begin(), send.end(), recv.begin() + own);
  const T* const from = in_place ? recv.data() + own : send.data();
  ASSERT_EQ(Complete(Of(group),
                     Call(CollectiveKind::kAllGather, kDtypeOf<T>, elements, from, recv.data())),
            absl::OkStatus());
  std::vector<T> expected;
  for (int32_t member = 0; member < group.count; ++member) {
    const std::vector<T> values = Values<T>(group.member(member).value, 0, part);
    expected.insert(expected.end(), values.begin(), values.end());
  }
  EXPECT_EQ(recv, WithGuard(expected));
}

template <typename T>
void ExpectBroadcast(Group group, int64_t elements, bool in_place) {
  for (int32_t root = 0; root < group.count; ++root) {
    std::vector<T> send = Values<T>(Self().value, 0, elements);
    std::vector<T> recv = WithGuard(std::vector<T>(elements, T{-1}));
    if (in_place) std::copy(send.begin(), send.end(), recv.begin());
    const bool sends = group.member(root) == Self();
    // Only the root's send buffer is read.
    const T* const from = in_place ? recv.data() : sends ? send.data() : nullptr;
    CollectiveCall call =
        Call(CollectiveKind::kBroadcast, kDtypeOf<T>, elements, from, recv.data());
    call.root = group.member(root);
    ASSERT_EQ(Complete(Of(group), call), absl::OkStatus());
    EXPECT_EQ(recv, WithGuard(Values<T>(call.root.value, 0, elements))) << "root " << root;
  }
}

// Elements, or elements of a part: none, one, fewer than ranks, a message's end and beyond.
constexpr int64_t kCounts[] = {0, 1, 3, 127, 128, 129, 1001, 70001};

// The groups of this rank: all, every other, the first three, and it alone.
std::vector<Group> GroupsOfThisRank() {
  const int32_t self = Self().value;
  std::vector<Group> groups = {All(), Group{self % 2, 2, 2}, Group{self, 1, 1}};
  if (self < 3) groups.push_back(Group{0, 1, 3});
  return groups;
}

template <typename Function>
void ForEveryShape(Function function) {
  for (const Group group : GroupsOfThisRank()) {
    for (const int64_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(testing::Message() << "group of " << group.count << " from " << group.first
                                        << ", " << count << (in_place ? " in place" : ""));
        function(group, count, in_place);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(MpiWorld, HasOneLocalRank) {
  EXPECT_EQ(world->size(), WorldSize{4});
  ASSERT_EQ(world->local_ranks().size(), 1u);
  EXPECT_EQ(std::to_string(Self().value), std::getenv("OMPI_COMM_WORLD_RANK"));
  EXPECT_EQ(world->patience(), kTimeout);
  EXPECT_TRUE(Of(All()).adds_in_rank_order());
}

TEST(MpiWorld, AllReduceAddsInRankOrder) {
  ForEveryShape([](Group group, int64_t count, bool in_place) {
    ExpectAllReduce<float>(group, count, in_place);
    ExpectAllReduce<double>(group, count, in_place);
  });
}

TEST(MpiWorld, ReduceScatterAddsInRankOrder) {
  ForEveryShape([](Group group, int64_t count, bool in_place) {
    ExpectReduceScatter<float>(group, count, in_place);
    ExpectReduceScatter<double>(group, count, in_place);
  });
}

TEST(MpiWorld, AllGatherGivesEveryMemberAllPartsInOrder) {
  ForEveryShape([](Group group, int64_t count, bool in_place) {
    ExpectAllGather<float>(group, count, in_place);
    ExpectAllGather<double>(group, count, in_place);
  });
}

TEST(MpiWorld, BroadcastGivesEveryMemberTheRootsBuffer) {
  ForEveryShape([](Group group, int64_t count, bool in_place) {
    ExpectBroadcast<float>(group, count, in_place);
    ExpectBroadcast<double>(group, count, in_place);
  });
}

TEST(MpiWorld, TheValuesOfThisFileShowTheOrderOfAddition) {
  int64_t differ = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    float backwards = Value<float>(3, i);
    for (int32_t rank = 2; rank >= 0; --rank) backwards += Value<float>(rank, i);
    if (backwards != Sum<float>(Group{0, 1, 4}, i)) ++differ;
  }
  EXPECT_GT(differ, 100);
}

TEST(MpiWorld, StartDoesNotWaitAndPollDoesNotBlock) {
  MeetAll();
  Communicator& all = Of(All());
  CollectiveHandle handle;
  // Rank 3 comes when each of the others has told it that it started, and polled in vain.
  for (int32_t rank = 0; rank < 3; ++rank) {
    if (Self().value != 3 && Self().value != rank) continue;
    if (Self().value == rank) {
      handle = *all.Start(Barrier());
      EXPECT_FALSE(*all.Poll(handle));
    }
    ASSERT_EQ(Complete(Of(Group{rank, 3 - rank, 2}), Barrier()), absl::OkStatus());
  }
  if (Self().value == 3) handle = *all.Start(Barrier());
  while (!*all.Poll(handle)) std::this_thread::yield();
  EXPECT_TRUE(*all.Poll(handle));
}

TEST(MpiWorld, ManyCollectivesAreUnderWayAndEndInAnyOrder) {
  constexpr int64_t kElements = 3001;
  constexpr int32_t kCalls = 40;
  std::vector<std::vector<double>> buffers;
  std::vector<std::pair<Communicator*, CollectiveHandle>> handles;
  const Group halves{Self().value % 2, 2, 2};
  for (int32_t i = 0; i < kCalls; ++i) {
    buffers.push_back(Values<double>(Self().value, i, kElements));
    Communicator& group = i % 3 == 0 ? Of(halves) : Of(All());
    handles.emplace_back(&group,
                         *group.Start(Call(CollectiveKind::kAllReduce, Dtype::kFloat64, kElements,
                                           buffers[i].data(), buffers[i].data())));
  }
  for (int32_t i = kCalls - 1; i >= 0; --i) {
    ASSERT_EQ(handles[i].first->Wait(handles[i].second, kTimeout), absl::OkStatus());
    EXPECT_EQ(buffers[i], Sums<double>(handles[i].first->group(), i, kElements)) << "call " << i;
  }
}

TEST(MpiWorld, OneRankMayRunFarAhead) {
  constexpr int32_t kCalls = 500;
  MeetAll();
  Communicator& all = Of(All());
  if (Self().value == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  std::vector<float> sums(kCalls);
  std::vector<CollectiveHandle> handles;
  for (int32_t i = 0; i < kCalls; ++i) {
    sums[i] = Value<float>(Self().value, i);
    handles.push_back(
        *all.Start(Call(CollectiveKind::kAllReduce, Dtype::kFloat32, 1, &sums[i], &sums[i])));
  }
  ASSERT_EQ(all.Wait(handles.back(), kTimeout), absl::OkStatus());
  for (int32_t i = 0; i < kCalls; ++i) {
    ASSERT_EQ(all.Wait(handles[i], kTimeout), absl::OkStatus());
    EXPECT_EQ(sums[i], Sum<float>(All(), i));
  }
}

TEST(MpiWorld, LargeBuffersTravelWhole) {
  const int64_t elements = (int64_t{3} << 20) + 5;
  ExpectAllReduce<float>(All(), elements, true);
  ExpectReduceScatter<double>(All(), elements / 4, false);
}

TEST(MpiWorld, EqualArgumentsGiveTheSameCommunicator) {
  EXPECT_EQ(&Of(All()), &Of(All()));
  EXPECT_NE(&Of(All()), &Of(Group{Self().value, 1, 1}));
  EXPECT_EQ(Of(All()).rank(), Self());
  EXPECT_EQ(Of(All()).group(), All());
}

TEST(MpiWorld, RefusesGroupsOutsideTheWorldAndRanksElsewhere) {
  const auto refusal = [](Rank rank, Group group) {
    const absl::Status status = world->communicator(rank, group).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(Self(), Group{0, 1, 5}), HasSubstr("count 5"));
  EXPECT_THAT(refusal(Self(), Group{(Self().value + 1) % 4, 1, 1}), HasSubstr("is not one of"));
  EXPECT_THAT(refusal(Rank{(Self().value + 1) % 4}, All()), HasSubstr("is not in this process"));
}

TEST(MpiWorld, ACallThatIsRefusedTakesNoPosition) {
  Communicator& all = Of(All());
  float buffer[4] = {};
  const auto refusal = [&](CollectiveKind kind, Dtype dtype, int64_t elements, void* recv) {
    const absl::Status status = all.Start(Call(kind, dtype, elements, buffer, recv)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(CollectiveKind::kAllReduce, Dtype::kBFloat16, 2, buffer),
              HasSubstr("MPI's world moves float32 and float64 only"));
  EXPECT_THAT(refusal(CollectiveKind::kAllReduce, Dtype::kFloat32, -1, buffer), HasSubstr("-1"));
  EXPECT_THAT(refusal(CollectiveKind::kAllReduce, Dtype::kFloat32, 2, nullptr),
              HasSubstr("recv is null"));
  EXPECT_THAT(refusal(CollectiveKind::kReduceScatter, Dtype::kFloat32, 6, buffer),
              HasSubstr("multiple of the group's 4 ranks"));
  MeetAll();
}

TEST(MpiWorld, RefusesHandlesItNeverGave) {
  Communicator& alone = Of(Group{Self().value, 1, 1});
  EXPECT_EQ(alone.Poll(CollectiveHandle{}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(alone.Poll(CollectiveHandle{1 << 20}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MpiWorld, AWaitEndsAndNamesTheRanksThatHaveNotArrived) {
  MeetAll();
  Communicator& all = Of(All());
  const bool late = Self().value == 1 || Self().value == 3;
  // Tells rank 1, or 3, that rank 0, or 2, has waited in vain.
  const Group pair{Self().value / 2 * 2, 1, 2};
  if (!late) {
    const CollectiveHandle handle = *all.Start(Barrier(5));
    // Both of them have arrived by the end of their own barrier.
    ASSERT_EQ(Complete(Of(Group{0, 2, 2}), Barrier()), absl::OkStatus());
    const absl::Status status = all.Wait(handle, kShort);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank " + std::to_string(Self().value) +
                                " waits for barrier (label 5), position "),
                      HasSubstr("of the group of ranks 0, 1, 2, 3; not arrived: ranks 1, 3"),
                      HasSubstr("waited 300ms")));
    EXPECT_THAT(world->DescribePending(), AllOf(HasSubstr("ranks 0, 2 wait in barrier (label 5)"),
                                                HasSubstr("not arrived: ranks 1, 3")));
    // It is still under way, and ends when the others come.
    ASSERT_EQ(Complete(Of(pair), Barrier()), absl::OkStatus());
    EXPECT_EQ(all.Wait(handle, kTimeout), absl::OkStatus());
  } else {
    ASSERT_EQ(Complete(Of(pair), Barrier()), absl::OkStatus());
    EXPECT_EQ(Complete(all, Barrier(6)), absl::OkStatus());
  }
  MeetAll();
  EXPECT_EQ(world->DescribePending(), "nothing is pending");
}

TEST(MpiWorld, AWaitNamesTheRankWhoseDataIsMissing) {
  MeetAll();
  Communicator& all = Of(All());
  // Rank 2 arrives, first of all, and then does nothing for a while.
  if (Self().value != 2) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  constexpr int64_t kPart = 25000;
  std::vector<float> values(4 * kPart, 1.0f);
  const CollectiveHandle handle =
      *all.Start(Call(CollectiveKind::kAllGather, Dtype::kFloat32, 4 * kPart,
                      values.data() + Self().value * kPart, values.data()));
  if (Self().value == 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3000));
  } else {
    const absl::Status status = all.Wait(handle, kShort);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("all have arrived, data awaited of rank 2;"));
  }
  EXPECT_EQ(all.Wait(handle, kTimeout), absl::OkStatus());
}

// Every member calls `usual`, rank 1 `other`. A group of its own for each, as it is of no use
// afterwards. Returns what every member is told.
std::string Disagreement(Group group, CollectiveCall usual, CollectiveCall other) {
  MeetAll();
  if (!group.Contains(Self())) return "";
  Communicator& communicator = Of(group);
  // What was called before is completed first.
  std::vector<double> before = Values<double>(Self().value, 0, 50000);
  const CollectiveHandle first = *communicator.Start(
      Call(CollectiveKind::kAllReduce, Dtype::kFloat64, 50000, before.data(), before.data()));
  const bool differs = Self().value == 1;
  CollectiveCall& call = differs ? other : usual;
  call.label = differs ? 11 : 10;
  absl::StatusOr<CollectiveHandle> handle = communicator.Start(call);
  const absl::Status status = handle.ok() ? communicator.Wait(*handle, kTimeout) : handle.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(before, Sums<double>(group, 0, 50000));
  EXPECT_EQ(communicator.Start(Barrier()).status(), status);
  EXPECT_EQ(communicator.Poll(first).status(), status);
  EXPECT_EQ(communicator.Wait(first, kTimeout), status);
  EXPECT_THAT(world->DescribePending(), HasSubstr(std::string(status.message())));
  return std::string(status.message());
}

TEST(MpiWorld, EveryMemberIsToldWhoDisagrees) {
  float a[12] = {}, b[12] = {};
  double wide[12] = {};
  const auto call = [&](CollectiveKind kind, int64_t elements) {
    return Call(kind, Dtype::kFloat32, elements, a, b);
  };
  const std::string kind = Disagreement(Group{0, 1, 3}, call(CollectiveKind::kAllReduce, 6),
                                        call(CollectiveKind::kReduceScatter, 6));
  // Position 1 of an earlier test's group, or later.
  if (Self().value < 3) {
    EXPECT_THAT(kind, AllOf(HasSubstr("ranks disagree at position "),
                            HasSubstr(" of the group of ranks 0, 1, 2: rank 0 called all_reduce of "
                                      "6 float32 (label 10), rank 1 called reduce_scatter of 6 "
                                      "float32 (label 11); 2 of 3 ranks called as rank 0")));
  }
  const std::string elements = Disagreement(Group{1, 1, 3}, call(CollectiveKind::kAllGather, 6),
                                            call(CollectiveKind::kAllGather, 3));
  if (Self().value >= 1) {
    EXPECT_THAT(elements, AllOf(HasSubstr("position 1 of the group of ranks 1, 2, 3"),
                                HasSubstr("rank 1 called all_gather of 3 float32"),
                                HasSubstr("rank 2 called all_gather of 6 float32")));
  }
  const std::string dtype =
      Disagreement(Group{1, 2, 2}, call(CollectiveKind::kAllReduce, 6),
                   Call(CollectiveKind::kAllReduce, Dtype::kFloat64, 6, wide, wide));
  if (Self().value % 2 == 1) {
    EXPECT_THAT(dtype,
                AllOf(HasSubstr("all_reduce of 6 float32"), HasSubstr("all_reduce of 6 float64")));
  }
  CollectiveCall usual = call(CollectiveKind::kBroadcast, 6), other = usual;
  usual.root = Rank{0};
  other.root = Rank{1};
  const std::string root = Disagreement(Group{0, 1, 2}, usual, other);
  if (Self().value < 2) {
    EXPECT_THAT(root, AllOf(HasSubstr("broadcast of 6 float32 from rank 0"),
                            HasSubstr("broadcast of 6 float32 from rank 1")));
  }
  // Other groups of the same ranks go on.
  MeetAll();
}

TEST(MpiWorld, LabelsAreNotCompared) {
  float value = 1;
  EXPECT_EQ(Complete(Of(All()), Call(CollectiveKind::kAllReduce, Dtype::kFloat32, 1, &value, &value,
                                     Self().value)),
            absl::OkStatus());
  EXPECT_EQ(value, 4);
}

TEST(MpiWorld, AnErrorOfMpiNamesTheCall) {
  const absl::Status status = MpiStatus(MPI_ERR_TRUNCATE, "MPI_Test(&request)");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("MPI_Test(&request)"), HasSubstr("MPI_ERR_TRUNCATE")));
}

TEST(MpiWorld, MpiStartsOnce) {
  EXPECT_EQ(MpiWorld::Create(MpiOptions{}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(MpiWorld, RefusesOptionsOutOfRange) {
  for (const int64_t bytes : {int64_t{0}, int64_t{-8}, int64_t{12}, int64_t{1} << 31}) {
    MpiOptions options;
    options.message_bytes = bytes;
    const absl::Status status = MpiWorld::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(bytes)));
  }
  MpiOptions options;
  options.timeout = absl::ZeroDuration();
  EXPECT_EQ(MpiWorld::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " MESSAGE_BYTES\n";
    return 2;
  }
  shardproof::MpiOptions options;
  options.timeout = shardproof::kTimeout;
  options.message_bytes = std::atoll(argv[1]);
  const auto created = shardproof::MpiWorld::Create(options);
  if (!created.ok()) {
    std::cerr << created.status() << "\n";
    return 1;
  }
  shardproof::world = created->get();
  return RUN_ALL_TESTS();
}
