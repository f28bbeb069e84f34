#include "invariants/suite/run_case.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/all_checks.h"
#include "invariants/closed_forms/example_runs.h"
#include "invariants/run_description/parse.h"
#include "trainer/engines/agreement.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/engines/split_world.h"
#include "trainer/engines/thread_jobs.h"
#include "trainer/model/importers.h"
#include "trainer/model/model_compute.h"

namespace shardproof {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

RunDescription SmallRun() {
  RunDescription run = MlpRun({5, 3, 4}, /*bias=*/true, Sharding(Mode::kFullShard, 2));
  run.data.micro_batch_size = 2;
  return run;
}

std::vector<std::string> NamesOf(const CaseResult& result) {
  std::vector<std::string> names;
  for (const CheckResult& check : result.checks) names.push_back(check.name);
  return names;
}

TEST(RunCase, TheReferenceTrainerPassesEveryCheck) {
  const absl::StatusOr<CaseResult> result = RunCase(SmallRun(), {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict, Verdict::kPass);
  EXPECT_THAT(NamesOf(*result), ElementsAreArray(AllCheckNames()));
  for (const CheckResult& check : result->checks) {
    EXPECT_EQ(check.verdict, Verdict::kPass) << check.name << " " << check.reason;
  }
  EXPECT_TRUE(result->numeric.observed);
  EXPECT_EQ(result->numeric.max_abs_parameter_error, 0);
  EXPECT_EQ(result->figures.ranks.size(), 2u);
}

TEST(RunCase, RunsOnlyTheChecksItWasAskedFor) {
  CaseOptions options;
  options.checks = {"padding", "aggregate_factors"};
  const absl::StatusOr<CaseResult> result = RunCase(SmallRun(), options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(NamesOf(*result), ElementsAre("padding", "aggregate_factors"));
  EXPECT_FALSE(result->numeric.observed);
}

TEST(RunCase, MissingEvidenceIsNoFailureAndSaysSo) {
  CaseOptions options;
  options.engine = EngineKind::kAccounting;
  const absl::StatusOr<CaseResult> result = RunCase(SmallRun(), options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict, Verdict::kPass);
  EXPECT_FALSE(result->numeric.observed);
  for (const CheckResult& check : result->checks) {
    if (check.name != "numeric_equivalence") continue;
    EXPECT_EQ(check.verdict, Verdict::kNotObserved);
    EXPECT_NE(check.reason, "");
  }
}

TEST(RunCase, ARefusalIsAResultAndNotAnError) {
  RunDescription mixed = SmallRun();
  mixed.sharding.precision.reduce = Dtype::kBFloat16;
  RunDescription opaque = SmallRun();
  opaque.model.kind = ModelKind::kOpaque;
  RunDescription hybrid = SmallRun();
  hybrid.sharding.shard_group_size = 1;
  for (const RunDescription& run : {mixed, opaque, hybrid}) {
    const absl::StatusOr<CaseResult> result = RunCase(run, {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->verdict, Verdict::kRefused);
    EXPECT_NE(result->refusal, "");
    EXPECT_TRUE(result->checks.empty());
  }
}

TEST(RunCase, TheAccountingEngineTakesModelsThatNobodyComputes) {
  RunDescription opaque = SmallRun();
  opaque.model.kind = ModelKind::kOpaque;
  CaseOptions options;
  options.engine = EngineKind::kAccounting;
  const absl::StatusOr<CaseResult> result = RunCase(opaque, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict, Verdict::kPass);
}

TEST(RunCase, MoreMemoryThanAllowedIsAnError) {
  CaseOptions options;
  options.memory_limit_bytes = 1000;
  const absl::StatusOr<CaseResult> result = RunCase(SmallRun(), options);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
  // The accounting engine knows shards, not values: it needs less, but not nothing.
  options.engine = EngineKind::kAccounting;
  EXPECT_EQ(RunCase(SmallRun(), options).status().code(), absl::StatusCode::kResourceExhausted);
  options.memory_limit_bytes = 1000000;
  EXPECT_TRUE(RunCase(SmallRun(), options).ok());
}

TEST(RunCase, NamesTheUnknownCheckAndTheAcceptedOnes) {
  CaseOptions options;
  options.checks = {"padding", "paddding"};
  const absl::StatusOr<CaseResult> result = RunCase(SmallRun(), options);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("'paddding'"));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("unshard_lifecycle"));
}

TEST(RunCase, AnInvalidRunIsAnErrorEvenIfTheTrainerWouldRefuseIt) {
  RunDescription run = SmallRun();
  run.clip_grad_norm = 1;
  run.sharding.world_size = WorldSize{0};
  EXPECT_EQ(RunCase(run, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

// ---------------------------------------------------------------- engines elsewhere

TEST(RunCase, WithoutAFactoryThereAreNoGpuEngines) {
  for (const EngineKind engine : {EngineKind::kCuda, EngineKind::kCudaShared}) {
    CaseOptions options;
    options.engine = engine;
    const absl::Status status = RunCase(SmallRun(), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(Name(engine))));
  }
}

// An engine that keeps parameter versions to itself, as one on GPUs does.
class VersionlessEngine : public Engine {
 public:
  explicit VersionlessEngine(std::unique_ptr<Engine> inner) : inner_(std::move(inner)) {}
  absl::StatusOr<const StepObservation*> Step() override {
    const absl::StatusOr<const StepObservation*> step = inner_->Step();
    if (!step.ok()) return step;
    step_ = **step;
    for (RankEvents& rank : step_.events) {
      for (Access& access : rank.accesses) access.version = -1;
    }
    return &step_;
  }

 private:
  const std::unique_ptr<Engine> inner_;
  StepObservation step_;
};

absl::StatusOr<CaseEngine> CpuInPlaceOfGpus(const RunDescription& run, const EngineParts& parts) {
  absl::StatusOr<std::unique_ptr<Engine>> cpu =
      MakeCpuEngine(run, parts, {.limit_bytes = int64_t{1} << 30});
  if (!cpu.ok()) return cpu.status();
  CaseEngine made;
  made.engine = std::make_unique<VersionlessEngine>(*std::move(cpu));
  made.oracle_compute = *MakeModelCompute(run);
  return made;
}

TEST(RunCase, JudgesAnInjectedEngineByAllNineChecks) {
  CaseOptions options;
  options.engine = EngineKind::kCudaShared;
  options.make_device_engine = [](const RunDescription& run, EngineKind engine,
                                  const EngineParts& parts, bool with_oracle) {
    EXPECT_EQ(engine, EngineKind::kCudaShared);
    EXPECT_TRUE(with_oracle);
    return CpuInPlaceOfGpus(run, parts);
  };
  const absl::StatusOr<CaseResult> result = RunCase(SmallRun(), options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->checks.size(), 9u);
  for (const CheckResult& check : result->checks) {
    EXPECT_EQ(check.verdict, Verdict::kPass) << check.name << " " << check.reason;
  }
  options.memory_limit_bytes = 100;
  EXPECT_EQ(RunCase(SmallRun(), options).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(RunCase, AnOracleThatCouldNotComputeIsAnErrorAndNotAVerdict) {
  CaseOptions options;
  options.engine = EngineKind::kCudaShared;
  options.make_device_engine = [](const RunDescription& run, EngineKind, const EngineParts& parts,
                                  bool) {
    absl::StatusOr<CaseEngine> made = CpuInPlaceOfGpus(run, parts);
    made->oracle_status = [] { return absl::InternalError("the device is gone"); };
    return made;
  };
  EXPECT_EQ(RunCase(SmallRun(), options).status().message(), "the device is gone");
}

// By rank, what RunCase gives to the processes of a job. `allow`, by rank: memory limits.
std::vector<absl::StatusOr<CaseResult>> RunInProcesses(const RunDescription& run,
                                                       const std::vector<int64_t>& allow) {
  const int32_t ranks = run.sharding.world_size.value;
  Meeting meeting(ranks);
  ThreadBoard board(ranks);
  std::vector<absl::StatusOr<CaseResult>> results(ranks, absl::UnknownError("has not run"));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadJob job(board, rank);
      Agreement agreement(job, absl::Seconds(30));
      PartOfWorld world(meeting, {Rank{rank}}, absl::Seconds(30));
      CaseOptions options;
      options.memory_limit_bytes = allow[rank];
      options.ranks = {.agreement = &agreement, .world = &world};
      results[rank] = RunCase(run, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

constexpr int64_t kPlenty = int64_t{1} << 30;

TEST(RunCase, InSeveralProcessesRankZeroJudgesWhatAllDid) {
  const std::vector<absl::StatusOr<CaseResult>> results =
      RunInProcesses(SmallRun(), {kPlenty, kPlenty});
  ASSERT_TRUE(results[0].ok()) << results[0].status();
  EXPECT_FALSE(results[0]->judged_elsewhere);
  EXPECT_EQ(results[0]->checks.size(), 9u);
  for (const CheckResult& check : results[0]->checks) {
    EXPECT_EQ(check.verdict, Verdict::kPass) << check.name << " " << check.reason;
  }
  EXPECT_EQ(results[0]->figures.ranks.size(), 2u);
  ASSERT_TRUE(results[1].ok()) << results[1].status();
  EXPECT_TRUE(results[1]->judged_elsewhere);
  EXPECT_TRUE(results[1]->checks.empty());
}

TEST(RunCase, InSeveralProcessesAllRefuseAlike) {
  RunDescription run = SmallRun();
  run.sharding.precision.reduce = Dtype::kBFloat16;
  for (const absl::StatusOr<CaseResult>& result : RunInProcesses(run, {kPlenty, kPlenty})) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->verdict, Verdict::kRefused);
  }
}

TEST(RunCase, InSeveralProcessesAllEndWithTheErrorOfOne) {
  for (const absl::StatusOr<CaseResult>& result : RunInProcesses(SmallRun(), {kPlenty, 100})) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
    EXPECT_TRUE(IsKnownToAll(result.status()));
  }
}

TEST(RunCase, ReportsEachStepAfterItRan) {
  RunDescription run = SmallRun();
  run.data.steps = 4;
  for (EngineKind engine : {EngineKind::kCpu, EngineKind::kAccounting}) {
    std::vector<int64_t> done;
    CaseOptions options;
    options.engine = engine;
    options.on_step = [&](int64_t steps_done) { done.push_back(steps_done); };
    ASSERT_TRUE(RunCase(run, options).ok());
    EXPECT_THAT(done, ElementsAre(1, 2, 3, 4));
  }
}

TEST(RunCase, BothEnginesShowTheSameFigures) {
  CaseOptions accounting;
  accounting.engine = EngineKind::kAccounting;
  const absl::StatusOr<CaseResult> counted = RunCase(SmallRun(), accounting);
  const absl::StatusOr<CaseResult> computed = RunCase(SmallRun(), {});
  ASSERT_TRUE(counted.ok() && computed.ok());
  EXPECT_EQ(counted->figures.all_gather_backward.payload_bytes,
            computed->figures.all_gather_backward.payload_bytes);
  ASSERT_EQ(counted->figures.ranks.size(), computed->figures.ranks.size());
  for (size_t rank = 0; rank < counted->figures.ranks.size(); ++rank) {
    EXPECT_EQ(counted->figures.ranks[rank].bytes, computed->figures.ranks[rank].bytes);
    EXPECT_EQ(counted->figures.ranks[rank].peak_bytes, computed->figures.ranks[rank].peak_bytes);
  }
}

TEST(ParseEngineKind, IsTheInverseOfName) {
  for (EngineKind engine : {EngineKind::kCpu, EngineKind::kAccounting, EngineKind::kProvenance,
                            EngineKind::kCuda, EngineKind::kCudaShared}) {
    const absl::StatusOr<EngineKind> parsed = ParseEngineKind(Name(engine));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, engine);
  }
  EXPECT_THAT(std::string(ParseEngineKind("gpu").status().message()), HasSubstr("accounting"));
}

TEST(ReplayLine, HoldsTheWholeRun) {
  RunDescription run = *ParseRun(
      "model=mlp:5,3,4:bias;mode=full_shard;prefetch=none;layout=rows;world_size=3;seed=7;"
      "units=0!,1;num_micro_batches=2;grad_sync=last",
      ImportModel);
  const std::string line = ReplayLine(run, EngineKind::kAccounting);
  EXPECT_THAT(line, HasSubstr("ci/bazel run //invariants:audit -- --engine=accounting --run='"));
  const size_t begin = line.find('\'') + 1;
  const std::string text = line.substr(begin, line.rfind('\'') - begin);
  const absl::StatusOr<RunDescription> again = ParseRun(text, ImportModel);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PrintRunJson(*again), PrintRunJson(run));
}

TEST(AvailableMemoryBytes, IsMoreThanThisTestUses) { EXPECT_GT(AvailableMemoryBytes(), 1 << 20); }

}  // namespace
}  // namespace shardproof
