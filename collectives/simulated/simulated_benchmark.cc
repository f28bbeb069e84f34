// What a collective of the simulated world costs on one core, and how much of it is not the
// arithmetic: elements = 0 is overhead alone. One iteration is one collective of four ranks:
// four Start and four Poll.
#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "collectives/communicator.h"
#include "collectives/simulated/rank_order_sum.h"
#include "collectives/simulated/simulated_world.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr int32_t kRanks = 4;

void RunCollective(benchmark::State& state, CollectiveKind kind) {
  const int64_t elements = state.range(0);
  auto world = SimulatedWorld::Create(WorldSize{kRanks});
  std::vector<Communicator*> communicators;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    communicators.push_back(*(*world)->communicator(Rank{rank}, Group{0, 1, kRanks}));
  }
  std::vector<std::vector<float>> sends(kRanks, std::vector<float>(elements, 1));
  std::vector<std::vector<float>> recvs(kRanks, std::vector<float>(elements));
  std::vector<CollectiveCall> calls(kRanks);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    calls[rank].kind = kind;
    calls[rank].elements = elements;
    calls[rank].send = sends[rank].data();
    calls[rank].recv = recvs[rank].data();
  }
  for (auto _ : state) {
    CollectiveHandle handles[kRanks];
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      handles[rank] = *communicators[rank]->Start(calls[rank]);
    }
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      if (!*communicators[rank]->Poll(handles[rank])) state.SkipWithError("not done");
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRanks);
}

// The arithmetic of an all-reduce alone.
void AddFourRanks(benchmark::State& state) {
  const int64_t elements = state.range(0);
  const std::vector<std::vector<float>> sends(kRanks, std::vector<float>(elements, 1));
  const std::vector<const float*> inputs = {sends[0].data(), sends[1].data(), sends[2].data(),
                                            sends[3].data()};
  std::vector<float> sum(elements);
  for (auto _ : state) {
    SumInRankOrder(inputs, elements, sum.data());
    benchmark::ClobberMemory();
  }
}

BENCHMARK_CAPTURE(RunCollective, barrier, CollectiveKind::kBarrier)->Arg(0);
BENCHMARK_CAPTURE(RunCollective, all_reduce, CollectiveKind::kAllReduce)->Arg(0)->Arg(512);
BENCHMARK_CAPTURE(RunCollective, all_reduce_large, CollectiveKind::kAllReduce)->Arg(1 << 20);
BENCHMARK_CAPTURE(RunCollective, reduce_scatter, CollectiveKind::kReduceScatter)->Arg(512);
BENCHMARK_CAPTURE(RunCollective, all_gather, CollectiveKind::kAllGather)->Arg(512);
BENCHMARK_CAPTURE(RunCollective, all_gather_large, CollectiveKind::kAllGather)->Arg(1 << 20);
BENCHMARK_CAPTURE(RunCollective, broadcast, CollectiveKind::kBroadcast)->Arg(512);
BENCHMARK(AddFourRanks)->Arg(512)->Arg(1 << 20);

}  // namespace
}  // namespace shardproof

BENCHMARK_MAIN();
