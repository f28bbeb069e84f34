// How many random cases a second one core runs, from drawing the case to its verdict.
//
//   ci/bazel run -c opt //property_tests/benchmarks:random_cases_benchmark
//
// A case: three steps of 4 ranks on the cpu engine, the oracle, and all nine checks, in a
// random mode and layout. items_per_second is cases a second.
#include <cstdint>

#include "benchmark/benchmark.h"
#include "invariants/suite/run_case.h"
#include "property_tests/generators/case_generator.h"
#include "rapidcheck.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

CaseLimits Limits(bool all_features) {
  CaseLimits limits;
  limits.world_sizes = {4};
  limits.all_features = all_features;
  return limits;
}

// A fresh case each iteration, drawn from a fixed seed: the same sequence in every run.
void RunRandomCases(benchmark::State& state, const CaseLimits& limits) {
  const rc::Gen<CaseSpec> any_case = AnyCase(limits);
  rc::Random random(7);
  for (auto _ : state) {
    const CaseSpec spec = any_case(random.split(), rc::kNominalSize).value();
    const absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
    if (!run.ok()) {
      state.SkipWithError(run.status().ToString().c_str());
      break;
    }
    const absl::StatusOr<CaseResult> result = RunCase(*run, CaseOptions());
    if (!result.ok() || result->verdict != Verdict::kPass) {
      state.SkipWithError(ReplayLine(*run, EngineKind::kCpu).c_str());
      break;
    }
  }
  state.SetItemsProcessed(state.iterations());
}

// MLPs of 1 to 5 layers up to 33 wide, one micro-batch of 1 to 4 samples, one layer a unit.
void MlpCases(benchmark::State& state) { RunRandomCases(state, Limits(/*all_features=*/false)); }

// The whole space: probe models, groupings, micro-batches, SGD, the options of modes.
void AllCases(benchmark::State& state) { RunRandomCases(state, Limits(/*all_features=*/true)); }

BENCHMARK(MlpCases)->MinTime(2);
BENCHMARK(AllCases)->MinTime(2);

}  // namespace
}  // namespace shardproof

BENCHMARK_MAIN();
