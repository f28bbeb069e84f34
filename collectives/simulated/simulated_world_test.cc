// Every engine's numbers go through these collectives: a wrong part, a wrong order of sums or
// a disagreement that passes silently would be blamed on the trainer.
#include "collectives/simulated/simulated_world.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/forwarding_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <typename T>
constexpr Dtype kDtypeOf = sizeof(T) == 4 ? Dtype::kFloat32 : Dtype::kFloat64;

// Tells rank and index apart in every sum of at most eight ranks, exactly.
template <typename T>
T Value(int32_t member, int64_t index) {
  return static_cast<T>((member + 1) * (member + 1) * 2000 + index);
}

// A world and its members' communicators of one group.
struct TestWorld {
  explicit TestWorld(int32_t size, Group members) : group(members) {
    world = *SimulatedWorld::Create(WorldSize{size});
    for (int32_t member = 0; member < group.count; ++member) {
      communicators.push_back(*world->communicator(group.member(member), group));
    }
  }
  explicit TestWorld(int32_t size) : TestWorld(size, Group{0, 1, size}) {}

  Communicator& operator[](int32_t member) { return *communicators[member]; }

  Group group;
  std::unique_ptr<SimulatedWorld> world;
  std::vector<Communicator*> communicators;
};

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

// One collective with every member's buffers: send and receive in one allocation, or apart.
template <typename T>
struct Exchange {
  Exchange(TestWorld& world, CollectiveKind kind, int64_t elements, bool in_place, int32_t root = 0)
      : world(world), kind(kind), elements(elements), in_place(in_place), root(root) {
    const int64_t part = elements / world.group.count;
    sends.resize(world.group.count);
    recvs.resize(world.group.count);
    for (int32_t member = 0; member < world.group.count; ++member) {
      const bool gathers = kind == CollectiveKind::kAllGather;
      sends[member].resize(gathers && !in_place ? part : elements, T{-1});
      recvs[member].resize(kind == CollectiveKind::kReduceScatter ? part : elements, T{-2});
      const int64_t first = gathers && in_place ? member * part : 0;
      const int64_t count = gathers ? part : elements;
      for (int64_t i = 0; i < count; ++i) sends[member][first + i] = Value<T>(member, i);
    }
  }

  CollectiveCall CallOf(int32_t member) {
    const int64_t part = elements / world.group.count;
    CollectiveCall call =
        Call(kind, kDtypeOf<T>, elements, sends[member].data(), recvs[member].data());
    call.root = world.group.member(root);
    if (!in_place) return call;
    call.recv = sends[member].data();
    if (kind == CollectiveKind::kAllGather) call.send = sends[member].data() + member * part;
    if (kind == CollectiveKind::kReduceScatter) call.recv = sends[member].data() + member * part;
    return call;
  }

  // Members arrive last to first, so that the order of arrival is not the order of ranks.
  void Run() {
    for (int32_t member = world.group.count - 1; member >= 0; --member) {
      const CollectiveHandle handle = *world[member].Start(CallOf(member));
      EXPECT_EQ(*world[member].Poll(handle), member == 0);
    }
  }

  std::vector<T> Received(int32_t member) {
    const T* const recv = static_cast<const T*>(CallOf(member).recv);
    return std::vector<T>(recv, recv + recvs[member].size());
  }

  T Sum(int64_t index) const {
    T sum = 0;
    for (int32_t member = 0; member < world.group.count; ++member) {
      sum += Value<T>(member, index);
    }
    return sum;
  }

  TestWorld& world;
  CollectiveKind kind;
  int64_t elements;
  bool in_place;
  int32_t root;
  std::vector<std::vector<T>> sends, recvs;
};

template <typename T>
void ExpectAllReduce(TestWorld& world, int64_t elements, bool in_place) {
  Exchange<T> exchange(world, CollectiveKind::kAllReduce, elements, in_place);
  exchange.Run();
  std::vector<T> expected(elements);
  for (int64_t i = 0; i < elements; ++i) expected[i] = exchange.Sum(i);
  for (int32_t member = 0; member < world.group.count; ++member) {
    EXPECT_EQ(exchange.Received(member), expected) << "member " << member;
  }
}

template <typename T>
void ExpectAllGather(TestWorld& world, int64_t part, bool in_place) {
  const int32_t members = world.group.count;
  Exchange<T> exchange(world, CollectiveKind::kAllGather, part * members, in_place);
  exchange.Run();
  std::vector<T> expected;
  for (int32_t member = 0; member < members; ++member) {
    for (int64_t i = 0; i < part; ++i) expected.push_back(Value<T>(member, i));
  }
  for (int32_t member = 0; member < members; ++member) {
    EXPECT_EQ(exchange.Received(member), expected) << "member " << member;
  }
}

template <typename T>
void ExpectReduceScatter(TestWorld& world, int64_t part, bool in_place) {
  const int32_t members = world.group.count;
  Exchange<T> exchange(world, CollectiveKind::kReduceScatter, part * members, in_place);
  exchange.Run();
  for (int32_t member = 0; member < members; ++member) {
    std::vector<T> expected(part);
    for (int64_t i = 0; i < part; ++i) expected[i] = exchange.Sum(member * part + i);
    EXPECT_EQ(exchange.Received(member), expected) << "member " << member;
  }
}

template <typename T>
void ExpectBroadcast(TestWorld& world, int64_t elements, bool in_place) {
  for (int32_t root = 0; root < world.group.count; ++root) {
    Exchange<T> exchange(world, CollectiveKind::kBroadcast, elements, in_place, root);
    exchange.Run();
    std::vector<T> expected(elements);
    for (int64_t i = 0; i < elements; ++i) expected[i] = Value<T>(root, i);
    for (int32_t member = 0; member < world.group.count; ++member) {
      EXPECT_EQ(exchange.Received(member), expected) << "root " << root << " member " << member;
    }
  }
}

// Groups: the whole world, and as many ranks with a gap between them.
class EveryShape : public testing::TestWithParam<std::tuple<int32_t, int64_t, bool, bool>> {
 protected:
  TestWorld MakeWorld() const {
    const int32_t ranks = std::get<0>(GetParam());
    return std::get<3>(GetParam()) ? TestWorld(3 * ranks + 2, Group{2, 3, ranks})
                                   : TestWorld(ranks);
  }
  int64_t count() const { return std::get<1>(GetParam()); }
  bool in_place() const { return std::get<2>(GetParam()); }
};

TEST_P(EveryShape, AllReduceGivesEveryMemberTheSum) {
  TestWorld world = MakeWorld();
  ExpectAllReduce<float>(world, count(), in_place());
  ExpectAllReduce<double>(world, count(), in_place());
}

TEST_P(EveryShape, AllGatherGivesEveryMemberAllPartsInOrder) {
  TestWorld world = MakeWorld();
  ExpectAllGather<float>(world, count(), in_place());
  ExpectAllGather<double>(world, count(), in_place());
}

TEST_P(EveryShape, ReduceScatterGivesEachMemberItsPartOfTheSum) {
  TestWorld world = MakeWorld();
  ExpectReduceScatter<float>(world, count(), in_place());
  ExpectReduceScatter<double>(world, count(), in_place());
}

TEST_P(EveryShape, BroadcastGivesEveryMemberTheRootsBuffer) {
  TestWorld world = MakeWorld();
  ExpectBroadcast<float>(world, count(), in_place());
  ExpectBroadcast<double>(world, count(), in_place());
}

// 9001 elements are more than two blocks of the implementation.
INSTANTIATE_TEST_SUITE_P(RanksElementsInPlaceStrided, EveryShape,
                         testing::Combine(testing::Values(1, 2, 3, 5, 8),
                                          testing::Values(0, 1, 127, 9001), testing::Bool(),
                                          testing::Bool()));

TEST(SimulatedWorld, AddsInRankOrder) {
  // ((1e8 + 1) - 1e8) + 1: the first 1 is lost, the second is not. Backwards or in pairs the
  // sum would be 0, with both ones last 2.
  const float values[] = {1e8f, 1, -1e8f, 1};
  std::vector<int32_t> arrival = {0, 1, 2, 3};
  do {
    TestWorld world(4);
    float sums[4] = {};
    for (const int32_t member : arrival) {
      ASSERT_TRUE(world[member]
                      .Start(Call(CollectiveKind::kAllReduce, Dtype::kFloat32, 1, &values[member],
                                  &sums[member]))
                      .ok());
    }
    EXPECT_THAT(sums, testing::Each(1.0f));
    EXPECT_TRUE(world[0].adds_in_rank_order());
  } while (std::next_permutation(arrival.begin(), arrival.end()));
}

TEST(SimulatedWorld, ReduceScatterAddsInRankOrder) {
  TestWorld world(4);
  const float sends[4][4] = {
      {1e8f, 1, -1e8f, 1}, {1, 1e8f, 1, 1}, {-1e8f, -1e8f, 1, 1e8f}, {1, 1, 1e8f, -1e8f}};
  const float expected[4] = {((1e8f + 1) - 1e8f) + 1, ((1 + 1e8f) - 1e8f) + 1,
                             ((-1e8f + 1) + 1) + 1e8f, ((1.0f + 1) + 1e8f) - 1e8f};
  float recvs[4] = {};
  for (const int32_t member : {2, 0, 3, 1}) {
    ASSERT_TRUE(world[member]
                    .Start(Call(CollectiveKind::kReduceScatter, Dtype::kFloat32, 4, sends[member],
                                &recvs[member]))
                    .ok());
  }
  EXPECT_THAT(recvs, testing::ElementsAreArray(expected));
}

TEST(SimulatedWorld, OnlyTheRootsSendBufferIsReadInABroadcast) {
  TestWorld world(2);
  float value = 7, received = 0;
  CollectiveCall call = Call(CollectiveKind::kBroadcast, Dtype::kFloat32, 1, nullptr, &received);
  call.root = Rank{1};
  ASSERT_TRUE(world[0].Start(call).ok());
  call.send = call.recv = &value;
  ASSERT_TRUE(world[1].Start(call).ok());
  EXPECT_EQ(received, 7);
}

TEST(SimulatedWorld, MatchesCallsByTheirOrderHoweverFarOneRankRunsAhead) {
  constexpr int32_t kCalls = 1000;
  TestWorld world(3);
  std::vector<std::vector<float>> sums(3, std::vector<float>(kCalls));
  std::vector<CollectiveHandle> handles;
  for (const int32_t member : {1, 2, 0}) {
    handles.clear();
    for (int32_t i = 0; i < kCalls; ++i) {
      float* const buffer = &sums[member][i];
      *buffer = Value<float>(member, i);
      const auto handle =
          world[member].Start(Call(CollectiveKind::kAllReduce, Dtype::kFloat32, 1, buffer, buffer));
      ASSERT_TRUE(handle.ok()) << handle.status();
      EXPECT_EQ(*world[member].Poll(*handle), member == 0);
      handles.push_back(*handle);
    }
  }
  for (int32_t i = 0; i < kCalls; ++i) {
    const float sum = Value<float>(0, i) + Value<float>(1, i) + Value<float>(2, i);
    for (int32_t member = 0; member < 3; ++member) EXPECT_EQ(sums[member][i], sum);
    EXPECT_TRUE(*world[0].Poll(handles[i]));
  }
}

TEST(SimulatedWorld, GoesOnWhenPositionsReuseTheirMemory) {
  TestWorld world(2);
  CollectiveHandle ahead = *world[0].Start(Barrier());
  for (int32_t i = 0; i < 200; ++i) {
    const CollectiveHandle next = *world[0].Start(Barrier());
    EXPECT_FALSE(*world[0].Poll(ahead));
    EXPECT_TRUE(*world[1].Poll(*world[1].Start(Barrier())));
    EXPECT_TRUE(*world[0].Poll(ahead)) << "call " << i;
    EXPECT_FALSE(*world[0].Poll(next)) << "call " << i;
    ahead = next;
  }
}

TEST(SimulatedWorld, GroupsHaveTheirOwnOrders) {
  TestWorld world(4);
  Communicator& even0 = **world.world->communicator(Rank{0}, Group{0, 2, 2});
  Communicator& even2 = **world.world->communicator(Rank{2}, Group{0, 2, 2});
  const CollectiveHandle all = *world[0].Start(Barrier());
  ASSERT_TRUE(even0.Start(Barrier()).ok());
  EXPECT_TRUE(*even2.Poll(*even2.Start(Barrier())));
  EXPECT_FALSE(*world[0].Poll(all));
}

TEST(SimulatedWorld, EqualArgumentsGiveTheSameCommunicator) {
  TestWorld world(4);
  EXPECT_EQ(*world.world->communicator(Rank{2}, Group{0, 1, 4}), &world[2]);
  EXPECT_NE(*world.world->communicator(Rank{2}, Group{0, 2, 2}), &world[2]);
  EXPECT_EQ(world[2].rank(), Rank{2});
  EXPECT_EQ(world[2].group(), (Group{0, 1, 4}));
}

TEST(SimulatedWorld, AGroupOfOneRankIsDoneAtOnce) {
  TestWorld world(4, Group{3, 1, 1});
  double value = 5, sum = 0;
  const auto handle =
      world[0].Start(Call(CollectiveKind::kAllReduce, Dtype::kFloat64, 1, &value, &sum));
  EXPECT_TRUE(*world[0].Poll(*handle));
  EXPECT_EQ(sum, 5);
}

TEST(SimulatedWorld, RefusesGroupsOutsideTheWorld) {
  EXPECT_EQ(SimulatedWorld::Create(WorldSize{0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  TestWorld world(4);
  for (const Group group : {Group{-1, 1, 2}, Group{0, 0, 1}, Group{0, 1, 0}, Group{0, 1, 5},
                            Group{1, 2, 3}, Group{0, 2000000000, 2000000000}}) {
    const absl::Status status = world.world->communicator(Rank{0}, group).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("count " + std::to_string(group.count)));
  }
  const absl::Status status = world.world->communicator(Rank{1}, Group{0, 2, 2}).status();
  EXPECT_EQ(status.message(), "rank 1 is not one of ranks 0, 2");
}

TEST(SimulatedWorld, RefusesCallsThatNoMemberCouldMean) {
  TestWorld world(2);
  float buffer[4] = {};
  const auto refusal = [&](CollectiveKind kind, Dtype dtype, int64_t elements, const void* send,
                           void* recv, int32_t root = 0) {
    CollectiveCall call = Call(kind, dtype, elements, send, recv, 9);
    call.root = Rank{root};
    const absl::Status status = world[0].Start(call).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto reduce = CollectiveKind::kAllReduce;
  const auto f32 = Dtype::kFloat32;
  EXPECT_THAT(refusal(reduce, Dtype::kBFloat16, 2, buffer, buffer), HasSubstr("bfloat16"));
  EXPECT_THAT(refusal(reduce, f32, -1, buffer, buffer), HasSubstr("of -1 float32 (label 9)"));
  EXPECT_THAT(refusal(reduce, f32, 2, nullptr, buffer), HasSubstr("send is null"));
  EXPECT_THAT(refusal(reduce, f32, 2, buffer, nullptr), HasSubstr("recv is null"));
  EXPECT_THAT(refusal(CollectiveKind::kAllGather, f32, 3, buffer, buffer),
              HasSubstr("multiple of the group's 2 ranks"));
  EXPECT_THAT(refusal(CollectiveKind::kReduceScatter, f32, 3, buffer, buffer),
              HasSubstr("multiple of the group's 2 ranks"));
  EXPECT_THAT(refusal(CollectiveKind::kBroadcast, f32, 2, buffer, buffer, 2),
              AllOf(HasSubstr("from rank 2"), HasSubstr("one of ranks 0, 1")));
  // None of them took a position.
  const CollectiveHandle handle = *world[0].Start(Barrier());
  ASSERT_TRUE(world[1].Start(Barrier()).ok());
  EXPECT_TRUE(*world[0].Poll(handle));
}

TEST(SimulatedWorld, RefusesHandlesItNeverGave) {
  TestWorld world(2);
  EXPECT_EQ(world[0].Poll(CollectiveHandle{}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(world[0].Poll(CollectiveHandle{0}).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(world[1].Start(Barrier()).ok());
  EXPECT_EQ(world[0].Wait(CollectiveHandle{0}, absl::Seconds(1)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SimulatedWorld, WaitNamesTheRanksThatHaveNotArrivedAtOnce) {
  TestWorld world(4);
  const CollectiveHandle handle = *world[2].Start(Barrier(5));
  ASSERT_TRUE(world[1].Start(Barrier(6)).ok());
  const absl::Status status = world[2].Wait(handle, absl::InfiniteDuration());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "rank 2 waits for barrier (label 5), position 0 of the group of ranks 0, 1, 2, 3; not "
            "arrived: ranks 0, 3");
  ASSERT_TRUE(world[0].Start(Barrier()).ok());
  ASSERT_TRUE(world[3].Start(Barrier()).ok());
  EXPECT_TRUE(world[2].Wait(handle, absl::InfiniteDuration()).ok());
}

TEST(SimulatedWorld, DescribesWhoWaitsAndWhoHasNotArrived) {
  TestWorld world(4);
  EXPECT_EQ(world.world->DescribePending(), "nothing is pending");
  float buffers[4][4] = {};
  const auto call = [&](int32_t member, CollectiveKind kind, int32_t label) {
    return Call(kind, Dtype::kFloat32, 4, buffers[member], buffers[member], label);
  };
  ASSERT_TRUE(world[0].Start(call(0, CollectiveKind::kAllReduce, 3)).ok());
  ASSERT_TRUE(world[1].Start(call(1, CollectiveKind::kAllReduce, 3)).ok());
  ASSERT_TRUE(world[3].Start(call(3, CollectiveKind::kAllGather, 4)).ok());
  ASSERT_TRUE(world[1].Start(Barrier()).ok());
  EXPECT_EQ(world.world->DescribePending(),
            "group of ranks 0, 1, 2, 3, position 0: ranks 0, 1 wait in all_reduce of 4 float32 "
            "(label 3); rank 3 waits in all_gather of 4 float32 (label 4); not arrived: rank 2\n"
            "group of ranks 0, 1, 2, 3, position 1: rank 1 waits in barrier (label -1); not "
            "arrived: ranks 0, 2, 3");
}

TEST(SimulatedWorld, NamesALargeGroupShortly) {
  TestWorld world(512);
  ASSERT_TRUE(world[7].Start(Barrier()).ok());
  EXPECT_THAT(world.world->DescribePending(),
              AllOf(HasSubstr("group of ranks 0, 1, 2, 3, ..., 511 (512 ranks)"),
                    HasSubstr("not arrived: ranks 0, 1, 2, 3, ..., 511 (511 ranks)")));
}

// Members 0 and 2 call `usual`, member 1 calls `other`. Returns what the last to arrive gets.
std::string Disagreement(CollectiveCall usual, CollectiveCall other) {
  TestWorld world(3);
  std::vector<CollectiveHandle> handles;
  for (const int32_t member : {0, 1, 2}) {
    handles.push_back(*world[member].Start(Barrier()));
  }
  usual.label = 10;
  other.label = 11;
  EXPECT_TRUE(world[0].Start(usual).ok());
  EXPECT_TRUE(world[1].Start(other).ok());
  const absl::Status status = world[2].Start(usual).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const int32_t member : {0, 1, 2}) {
    EXPECT_EQ(world[member].Start(Barrier()).status(), status);
    EXPECT_EQ(world[member].Poll(handles[member]).status(), status);
    EXPECT_EQ(world[member].Wait(handles[member], absl::Seconds(1)), status);
  }
  EXPECT_EQ(world.world->DescribePending(), status.message());
  // Another group of the same ranks is not affected.
  for (const int32_t rank : {0, 2}) {
    EXPECT_TRUE((*world.world->communicator(Rank{rank}, Group{0, 2, 2}))->Start(Barrier()).ok());
  }
  return std::string(status.message());
}

TEST(SimulatedWorld, NamesRanksThatDisagreeAboutTheKind) {
  float a[6] = {}, b[6] = {};
  EXPECT_EQ(Disagreement(Call(CollectiveKind::kAllReduce, Dtype::kFloat32, 6, a, b),
                         Call(CollectiveKind::kReduceScatter, Dtype::kFloat32, 6, a, b)),
            "ranks disagree at position 1 of the group of ranks 0, 1, 2: rank 0 called all_reduce "
            "of 6 float32 (label 10), rank 1 called reduce_scatter of 6 float32 (label 11); 2 of 3 "
            "ranks called as rank 0");
}

TEST(SimulatedWorld, NamesRanksThatDisagreeAboutTheDtype) {
  double a[6] = {}, b[6] = {};
  EXPECT_THAT(Disagreement(Call(CollectiveKind::kAllReduce, Dtype::kFloat64, 6, a, b),
                           Call(CollectiveKind::kAllReduce, Dtype::kFloat32, 6, a, b)),
              AllOf(HasSubstr("rank 0 called all_reduce of 6 float64"),
                    HasSubstr("rank 1 called all_reduce of 6 float32")));
}

TEST(SimulatedWorld, NamesRanksThatDisagreeAboutTheElements) {
  float a[6] = {}, b[6] = {};
  EXPECT_THAT(Disagreement(Call(CollectiveKind::kAllGather, Dtype::kFloat32, 6, a, b),
                           Call(CollectiveKind::kAllGather, Dtype::kFloat32, 3, a, b)),
              AllOf(HasSubstr("rank 0 called all_gather of 6 float32"),
                    HasSubstr("rank 1 called all_gather of 3 float32")));
}

TEST(SimulatedWorld, NamesRanksThatDisagreeAboutTheRoot) {
  float a[6] = {}, b[6] = {};
  CollectiveCall usual = Call(CollectiveKind::kBroadcast, Dtype::kFloat32, 6, a, b);
  CollectiveCall other = usual;
  other.root = Rank{2};
  EXPECT_THAT(Disagreement(usual, other),
              AllOf(HasSubstr("rank 0 called broadcast of 6 float32 from rank 0 (label 10)"),
                    HasSubstr("rank 1 called broadcast of 6 float32 from rank 2 (label 11)")));
}

TEST(SimulatedWorld, DoesNotCompareLabelsNorWhatAKindDoesNotUse) {
  TestWorld world(2);
  float a[2] = {1, 1}, b[2] = {2, 2};
  CollectiveCall call = Call(CollectiveKind::kAllReduce, Dtype::kFloat32, 2, a, a, 1);
  ASSERT_TRUE(world[0].Start(call).ok());
  call = Call(CollectiveKind::kAllReduce, Dtype::kFloat32, 2, b, b, 2);
  call.root = Rank{1};
  EXPECT_TRUE(*world[1].Poll(*world[1].Start(call)));
  ASSERT_TRUE(world[0].Start(Barrier()).ok());
  call.kind = CollectiveKind::kBarrier;
  call.dtype = Dtype::kFloat16;
  EXPECT_TRUE(*world[1].Poll(*world[1].Start(call)));
}

// A fault from outside: this rank's buffers never reach the others.
class SendsZeros : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    zeros_.assign(call.elements, 0);
    CollectiveCall changed = call;
    changed.send = zeros_.data();
    return inner().Start(changed);
  }

 private:
  std::vector<float> zeros_;
};

TEST(SimulatedWorld, HasAllRanksHereAndNobodyElsewhereToWaitFor) {
  const auto world = *SimulatedWorld::Create(WorldSize{3});
  EXPECT_THAT(world->local_ranks(), testing::ElementsAre(Rank{0}, Rank{1}, Rank{2}));
  EXPECT_EQ(world->patience(), absl::ZeroDuration());
}

TEST(SimulatedWorld, ADecoratorOverridesOneFunction) {
  TestWorld world(2);
  SendsZeros faulty(&world[1]);
  const float values[2] = {3, 4};
  float sums[2] = {};
  const auto call = [&](int32_t member) {
    return Call(CollectiveKind::kAllReduce, Dtype::kFloat32, 1, &values[member], &sums[member]);
  };
  ASSERT_TRUE(world[0].Start(call(0)).ok());
  const CollectiveHandle handle = *faulty.Start(call(1));
  EXPECT_TRUE(*faulty.Poll(handle));
  EXPECT_TRUE(faulty.Wait(handle, absl::Seconds(1)).ok());
  EXPECT_EQ(faulty.rank(), Rank{1});
  EXPECT_EQ(faulty.group(), (Group{0, 1, 2}));
  EXPECT_TRUE(faulty.adds_in_rank_order());
  EXPECT_THAT(sums, testing::Each(3.0f));
}

}  // namespace
}  // namespace shardproof
