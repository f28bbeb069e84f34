// The fuzz loop runs a thousand training cases a second through the simulated world: calls must
// not allocate. This binary counts what operator new is asked for.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/simulated/simulated_world.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace shardproof {
namespace {

constexpr int32_t kRanks = 4;
constexpr int64_t kElements = 512;

// Each member starts `in_flight` calls before the next member does, then polls them.
void RunCalls(const std::vector<Communicator*>& communicators, int in_flight,
              std::vector<std::vector<float>>& buffers) {
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    for (int i = 0; i < in_flight; ++i) {
      CollectiveCall call;
      call.kind = static_cast<CollectiveKind>(i % 5);
      call.elements = kElements;
      call.send = buffers[2 * rank].data();
      call.recv = buffers[2 * rank + 1].data();
      ASSERT_TRUE(communicators[rank]->Poll(*communicators[rank]->Start(call)).ok());
    }
  }
}

TEST(SimulatedWorld, CallsDoNotAllocateInTheSteadyState) {
  auto world = *SimulatedWorld::Create(WorldSize{kRanks});
  std::vector<Communicator*> communicators;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    communicators.push_back(*world->communicator(Rank{rank}, Group{0, 1, kRanks}));
  }
  std::vector<std::vector<float>> buffers(2 * kRanks, std::vector<float>(kElements));
  RunCalls(communicators, 100, buffers);
  const int64_t before = allocations;
  EXPECT_GT(before, 0) << "operator new is not counted";
  for (int step = 0; step < 10; ++step) RunCalls(communicators, 100, buffers);
  EXPECT_EQ(allocations, before);
}

}  // namespace
}  // namespace shardproof
