#include "property_tests/faults/secret_collective.h"

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/forwarding_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/vocabulary.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/engines/engine.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

using Counts = std::array<std::atomic<int64_t>, kCollectiveKindCount>;

// Counts what is really issued, as kernels: a barrier is an all-reduce of one element.
class CountsKernels : public ForwardingCommunicator {
 public:
  CountsKernels(Communicator* inner, Counts& counts)
      : ForwardingCommunicator(inner), counts_(counts) {}
  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    const bool barrier = call.kind == CollectiveKind::kBarrier;
    ++counts_[static_cast<size_t>(barrier ? CollectiveKind::kAllReduce : call.kind)];
    return inner().Start(call);
  }

 private:
  Counts& counts_;
};

// An edit's communicator and the counter that it talks to.
class Counted : public ForwardingCommunicator {
 public:
  Counted(std::unique_ptr<Communicator> counter, std::unique_ptr<Communicator> edited)
      : ForwardingCommunicator(edited.get()),
        counter_(std::move(counter)),
        edited_(std::move(edited)) {}

 private:
  const std::unique_ptr<Communicator> counter_;
  const std::unique_ptr<Communicator> edited_;
};

// The cpu engine of two ranks, with kernels as a GPU's witness would have counted them.
class WitnessedCpuEngine : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Make(const RunDescription& run,
                                                      EngineParts parts) {
    auto made = std::make_unique<WitnessedCpuEngine>();
    parts.decorate = [counts = made->counts_.get(), edit = std::move(parts.decorate)](
                         Rank rank, Communicator* inner) -> std::unique_ptr<Communicator> {
      auto counter = std::make_unique<CountsKernels>(inner, (*counts)[rank.value]);
      auto edited = edit ? edit(rank, counter.get())
                         : std::make_unique<ForwardingCommunicator>(counter.get());
      return std::make_unique<Counted>(std::move(counter), std::move(edited));
    };
    auto cpu = MakeCpuEngine(run, parts, MemoryBudget{.limit_bytes = int64_t{1} << 30});
    if (!cpu.ok()) return cpu.status();
    made->cpu_ = *std::move(cpu);
    return made;
  }

  absl::StatusOr<const StepObservation*> Step() override {
    const absl::StatusOr<const StepObservation*> step = cpu_->Step();
    if (!step.ok()) return step;
    step_ = **step;
    for (int32_t rank : {0, 1}) {
      DeviceWitness witness = {.rank = rank};
      for (auto& count : (*counts_)[rank]) witness.collective_kernels.push_back(count.exchange(0));
      step_.devices.push_back(std::move(witness));
    }
    return &step_;
  }

 private:
  const std::unique_ptr<std::array<Counts, 2>> counts_ = std::make_unique<std::array<Counts, 2>>();
  std::unique_ptr<Engine> cpu_;
  StepObservation step_;
};

absl::StatusOr<CaseEngine> Witnessed(const RunDescription& run, EngineKind,
                                     const EngineParts& parts, bool) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = WitnessedCpuEngine::Make(run, parts);
  if (!engine.ok()) return engine.status();
  CaseEngine made;
  made.engine = *std::move(engine);
  return made;
}

TEST(SecretCollectiveTest, OnlyTheWitnessFindsIt) {
  const absl::StatusOr<RunDescription> run = ParseFaultRun(kSecretRun);
  ASSERT_TRUE(run.ok()) << run.status();
  const KillReport unseen = RunEdited(*run, CommunicateInSecret(), {.provenance = false});
  EXPECT_TRUE(unseen.error.ok()) << unseen.error;
  EXPECT_FALSE(Killed(unseen)) << unseen.killers[0];
  const KillEngines engines = {
      .values = EngineKind::kCuda, .provenance = false, .make_device_engine = Witnessed};
  EXPECT_EQ(SecretComplaint(RunEdited(*run, {}, engines)), "found by nothing");
  EXPECT_EQ(SecretComplaint(RunEdited(*run, CommunicateInSecret(), engines)), "");
}

KillReport LedgerReport(std::vector<std::string> rules) {
  KillReport report;
  report.killers = {"collective_ledger"};
  report.failures.resize(1);
  report.failures[0].name = "collective_ledger";
  for (std::string& rule : rules) {
    Violation violation;
    violation.rule = std::move(rule);
    report.failures[0].violations.push_back(std::move(violation));
  }
  return report;
}

TEST(SecretComplaintTest, NothingButTheRuleAboutKernelsMayFindIt) {
  const std::string kernels = "the GPU runs one kernel for each all_reduce of zero2, and no other";
  EXPECT_EQ(SecretComplaint(LedgerReport({kernels})), "");
  EXPECT_THAT(SecretComplaint(LedgerReport({kernels, "every collective says what it is for"})),
              HasSubstr("another rule"));
  KillReport others = LedgerReport({kernels});
  others.killers.push_back("issue_order");
  EXPECT_THAT(SecretComplaint(others), HasSubstr("collective_ledger, issue_order and not by"));
  KillReport error;
  error.error = absl::DeadlineExceededError("rank 1 has not arrived");
  EXPECT_THAT(SecretComplaint(error), HasSubstr("rank 1 has not arrived"));
  KillReport refused;
  refused.refusal = "no such mode";
  EXPECT_THAT(SecretComplaint(refused), HasSubstr("no such mode"));
}

}  // namespace
}  // namespace shardproof
