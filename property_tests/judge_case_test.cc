#include "property_tests/judge_case.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"
#include "property_tests/summing_trainer.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

RunDescription Parsed(absl::string_view line) {
  absl::StatusOr<RunDescription> run = ParseRun(line, ImportModel);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

TEST(JudgeCase, PassesOnEveryEngine) {
  const RunDescription run = Parsed("model=probe:3,2x2;world_size=2;mode=zero2");
  for (const EngineKind engine : AllEngines()) {
    const EngineVerdict verdict = JudgeCase(run, {.engine = engine});
    EXPECT_TRUE(verdict.passes) << Name(engine) << verdict.headline << verdict.details;
    EXPECT_EQ(verdict.engine, engine);
    EXPECT_EQ(verdict.headline, "pass");
    EXPECT_THAT(verdict.details, IsEmpty());
  }
}

TEST(JudgeCase, AFailureNamesItsChecksAndTheirRules) {
  const EngineVerdict verdict =
      JudgeCase(Parsed("model=mlp:3,2;world_size=4;mode=zero2"), {.make_parts = SummingParts});
  EXPECT_FALSE(verdict.passes);
  EXPECT_FALSE(verdict.is_bad_input);
  EXPECT_EQ(verdict.cause, "numeric_equivalence");
  EXPECT_THAT(verdict.headline, StartsWith("FAILS numeric_equivalence"));
  EXPECT_THAT(verdict.details, HasSubstr("  rule "));
  EXPECT_THAT(verdict.details, HasSubstr("ratio"));
}

TEST(JudgeCase, ARefusalIsBadInput) {
  const EngineVerdict verdict =
      JudgeCase(Parsed("model=mlp:3,2;world_size=2;parameter_dtype=bfloat16"), {});
  EXPECT_FALSE(verdict.passes);
  EXPECT_TRUE(verdict.is_bad_input);
  EXPECT_EQ(verdict.cause, "refused");
  EXPECT_THAT(verdict.headline, HasSubstr("bfloat16"));
}

TEST(JudgeCase, AnErrorIsNoPass) {
  const EngineVerdict verdict = JudgeCase(Parsed("model=mlp:3,2"), {.checks = {"everything"}});
  EXPECT_FALSE(verdict.passes);
  EXPECT_EQ(verdict.cause, "error");
  EXPECT_THAT(verdict.headline, HasSubstr("'everything' is unknown"));
}

TEST(JudgeCase, TooMuchMemoryIsBadInput) {
  const EngineVerdict verdict = JudgeCase(Parsed("model=mlp:3,2"), {.memory_limit_bytes = 10});
  EXPECT_FALSE(verdict.passes);
  EXPECT_TRUE(verdict.is_bad_input);
}

CheckResult ResultOf(absl::string_view name, Verdict verdict) {
  CheckResult result;
  result.name = std::string(name);
  result.verdict = verdict;
  return result;
}

TEST(Satisfies, AnEngineOwesWhatItShows) {
  const RunDescription run = Parsed("model=mlp:3,2;world_size=2");
  const auto without = [&](EngineKind engine, const char* check) {
    return Satisfies(run, engine, ResultOf(check, Verdict::kNotObserved));
  };
  EXPECT_FALSE(without(EngineKind::kProvenance, "provenance"));
  EXPECT_TRUE(without(EngineKind::kAccounting, "provenance"));
  for (const EngineKind engine : {EngineKind::kProvenance, EngineKind::kAccounting}) {
    for (const char* owed : {"aggregate_factors", "collective_ledger", "padding", "peak_memory",
                             "issue_order", "ordering"}) {
      EXPECT_FALSE(without(engine, owed)) << Name(engine) << " " << owed;
    }
    for (const char* of_values : {"numeric_equivalence", "liveness", "unshard_lifecycle"}) {
      EXPECT_TRUE(without(engine, of_values)) << Name(engine) << " " << of_values;
      for (const EngineKind of_all :
           {EngineKind::kCpu, EngineKind::kCuda, EngineKind::kCudaShared}) {
        EXPECT_FALSE(without(of_all, of_values)) << Name(of_all) << " " << of_values;
      }
      EXPECT_FALSE(Satisfies(run, engine, ResultOf(of_values, Verdict::kFail)));
    }
  }
}

// Without a GPU there is nothing to judge; that must not look like a pass.
TEST(JudgeCase, AnEngineOfGpusInAProgramWithoutIsNoPass) {
  for (const EngineKind engine : {EngineKind::kCuda, EngineKind::kCudaShared}) {
    const EngineVerdict verdict =
        JudgeCase(Parsed("model=mlp:3,2;world_size=2;mode=zero2"), {.engine = engine});
    EXPECT_FALSE(verdict.passes) << Name(engine);
    EXPECT_EQ(verdict.engine, engine);
  }
}

DeviceWitness Counted(int32_t rank) {
  return {.rank = rank, .collective_kernels = {0, 0, 0, 0, 0}};
}

TEST(WitnessComplaint, AGpuARankOwesTheKernelsOfEveryRank) {
  const RunDescription run = Parsed("model=mlp:3,2;world_size=2;mode=zero2");
  EXPECT_EQ(WitnessComplaint(run, EngineKind::kCuda, {Counted(0), Counted(1)}), "");
  EXPECT_EQ(WitnessComplaint(run, EngineKind::kCuda, {Counted(1), Counted(0)}), "");
  const DeviceWitness memory_only = {.rank = 1, .steady_bytes = 4096, .peak_bytes = 8192};
  for (const std::vector<DeviceWitness>& devices :
       {std::vector<DeviceWitness>{Counted(0)}, {Counted(0), memory_only}}) {
    EXPECT_EQ(WitnessComplaint(run, EngineKind::kCuda, devices),
              "rank 1 shows no kernels of its collectives; on cuda there must be a count of every "
              "kind");
  }
  EXPECT_THAT(WitnessComplaint(run, EngineKind::kCuda, {}), StartsWith("rank 0 shows no kernels"));
}

TEST(WitnessComplaint, RanksThatShareAGpuMustShowNone) {
  const RunDescription run = Parsed("model=mlp:3,2;world_size=2;mode=zero2");
  EXPECT_EQ(WitnessComplaint(run, EngineKind::kCudaShared, {}), "");
  EXPECT_EQ(WitnessComplaint(run, EngineKind::kCudaShared, {{.rank = 0}, {.rank = 1}}), "");
  EXPECT_EQ(WitnessComplaint(run, EngineKind::kCudaShared, {{.rank = 0}, Counted(1)}),
            "rank 1 shows kernels of its collectives; on cuda_shared there must be none");
}

TEST(WitnessComplaint, EnginesWithoutGpusOweNoKernels) {
  const RunDescription run = Parsed("model=mlp:3,2;world_size=2;mode=zero2");
  for (const EngineKind engine : AllEngines()) EXPECT_EQ(WitnessComplaint(run, engine, {}), "");
}

// The cpu engine as a program without a witness would have its GPUs: values alone.
class UnwitnessedEngine : public Engine {
 public:
  explicit UnwitnessedEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  absl::StatusOr<const StepObservation*> Step() override {
    absl::StatusOr<const StepObservation*> step = engine_->Step();
    if (!step.ok()) return step.status();
    observation_ = **step;
    for (RankEvents& rank : observation_.events) {
      for (Access& access : rank.accesses) access.version = -1;
    }
    return &observation_;
  }

 private:
  const std::unique_ptr<Engine> engine_;
  StepObservation observation_;
};

TEST(JudgeCase, GpusWithoutAWitnessAreNoPass) {
  const RunDescription run = Parsed("model=mlp:3,2;world_size=2;mode=zero2");
  CaseOptions options = {.engine = EngineKind::kCuda};
  options.make_device_engine = [](const RunDescription& made_for, EngineKind,
                                  const EngineParts& parts, bool) -> absl::StatusOr<CaseEngine> {
    auto cpu = MakeCpuEngine(made_for, parts, {.limit_bytes = int64_t{1} << 30});
    if (!cpu.ok()) return cpu.status();
    CaseEngine made;
    made.engine = std::make_unique<UnwitnessedEngine>(*std::move(cpu));
    return made;
  };
  for (const std::vector<std::string>& checks :
       {std::vector<std::string>{}, {"padding"}, {"collective_ledger"}}) {
    options.checks = checks;
    options.engine = EngineKind::kCuda;
    const EngineVerdict verdict = JudgeCase(run, options);
    EXPECT_FALSE(verdict.passes);
    EXPECT_EQ(verdict.cause, "kernel_witness");
    EXPECT_EQ(verdict.headline, "FAILS kernel_witness");
    EXPECT_THAT(verdict.details, StartsWith("kernel_witness: rank 0 shows no kernels"));
    options.engine = EngineKind::kCudaShared;
    const EngineVerdict shared = JudgeCase(run, options);
    EXPECT_TRUE(shared.passes) << shared.headline << shared.details;
  }
}

TEST(Satisfies, PlacesOfMomentsAreAllThatAccountingShows) {
  const CheckResult check = ResultOf("padding", Verdict::kNotObserved);
  for (const char* line : {"model=mlp:3,2;optimizer=sgd;momentum=0", "model=mlp:3,2;frozen=0"}) {
    EXPECT_TRUE(Satisfies(Parsed(line), EngineKind::kAccounting, check)) << line;
    EXPECT_FALSE(Satisfies(Parsed(line), EngineKind::kProvenance, check)) << line;
  }
  EXPECT_FALSE(Satisfies(Parsed("model=mlp:3,2"), EngineKind::kAccounting, check));
}

TEST(Satisfies, ARuleThatIsNotDefinedYetIsOwedByNobody) {
  for (const char* line : {"model=mlp:3,2;world_size=4;mode=full_shard;shard_group_size=2",
                           "model=mlp:3,2;world_size=2;mode=full_shard;parameter_dtype=bfloat16"}) {
    const RunDescription run = Parsed(line);
    const CheckResult check = ResultOf("provenance", Verdict::kNotObserved);
    EXPECT_TRUE(Satisfies(run, EngineKind::kProvenance, check)) << line;
    EXPECT_FALSE(Satisfies(run, EngineKind::kCpu, check)) << line;
  }
}

TEST(ParseEngines, OneOrAll) {
  EXPECT_EQ(ParseEngines("all")->size(), AllEngines().size());
  EXPECT_THAT(*ParseEngines("accounting"), ElementsAre(EngineKind::kAccounting));
  EXPECT_THAT(std::string(ParseEngines("gpu").status().message()),
              HasSubstr("engine 'gpu' is unknown; accepted: accounting, cpu, provenance, all"));
  EXPECT_THAT(std::string(ParseEngines("cuda").status().message()),
              HasSubstr("'cuda' is for GPUs, which are not used here; accepted: accounting, cpu"));
  EXPECT_THAT(*ParseEngines("cuda_shared", /*gpus=*/true), ElementsAre(EngineKind::kCudaShared));
  EXPECT_EQ(ParseEngines("all", /*gpus=*/true)->size(), AllEngines().size());
  EXPECT_THAT(std::string(ParseEngines("gpu", /*gpus=*/true).status().message()),
              HasSubstr("unknown; accepted: accounting, cpu, cuda, cuda_shared, provenance, all"));
}

}  // namespace
}  // namespace shardproof
