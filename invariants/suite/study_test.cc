// The reference trainer against what PyTorch was measured to do, and the modes against each
// other.
//
// The figures are fixtures/study/zero_state_study.json's; its README says who measured them.
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fixtures/study/zero_state_study.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"
#include "invariants/suite/mode_rows.h"
#include "invariants/suite/run_case.h"
#include "property_tests/generators/case_generator.h"
#include "property_tests/generators/rapidcheck_defaults.h"
#include "rapidcheck.h"
#include "trainer/engines/accounting_engine.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using testing::ElementsAreArray;

const Study& TheStudy() {
  static const Study* const study = new Study(ReadStudy());
  return *study;
}

RunDescription RunOf(const std::string& model, const ModeRow& row, LayoutKind layout,
                     int32_t world_size) {
  RunDescription run;
  run.model = *ImportModel(model);
  run.sharding.world_size = WorldSize{world_size};
  ApplyModeRow(row, layout, run.sharding);
  return run;
}

// The run that stands for a measured config, on another model if asked.
RunDescription RunOf(const StudyConfig& config, const std::string& model,
                     int64_t bucket_cap_bytes) {
  const absl::StatusOr<std::vector<ModeRow>> rows = ParseModeRows(config.mode_row);
  EXPECT_TRUE(rows.ok() && rows->size() == 1) << config.mode_row;
  RunDescription run = RunOf(model, (*rows)[0], *ParseLayoutKind(config.layout), config.world_size);
  run.sharding.bucket_cap_bytes = bucket_cap_bytes;
  return run;
}

StepFigures Figures(const RunDescription& run, EngineKind engine) {
  CaseOptions options;
  options.engine = engine;
  const absl::StatusOr<CaseResult> result = RunCase(run, options);
  if (!result.ok()) {
    ADD_FAILURE() << result.status();
    return {};
  }
  EXPECT_EQ(result->verdict, Verdict::kPass) << ReplayLine(run, engine);
  return result->figures;
}

// By the names of the audit's JSON; "all_gather" is the sum over phases.
std::map<std::string, CollectiveFigures> ByName(const StepFigures& figures) {
  std::map<std::string, CollectiveFigures> named = {
      {"all_reduce", figures.all_reduce},
      {"all_gather_forward", figures.all_gather_forward},
      {"all_gather_backward", figures.all_gather_backward},
      {"all_gather_optimizer", figures.all_gather_optimizer},
      {"reduce_scatter", figures.reduce_scatter},
      {"broadcast", figures.broadcast}};
  CollectiveFigures gathers;
  for (const auto& [name, kind] : named) {
    if (absl::StartsWith(name, "all_gather")) gathers.count += kind.count;
  }
  named["all_gather"] = gathers;
  return named;
}

void ExpectCounts(const StudyConfig& config, const StepFigures& figures) {
  std::map<std::string, CollectiveFigures> named = ByName(figures);
  for (const auto& [name, count] : config.counts) EXPECT_EQ(named[name].count, count) << name;
}

void ExpectFactors(const StudyConfig& config, const StepFigures& figures) {
  EXPECT_EQ(figures.parameter_factor, config.parameter_factor);
  EXPECT_EQ(figures.gradient_factor, config.gradient_factor);
  EXPECT_EQ(figures.optimizer_factor, config.optimizer_factor);
}

class MeasuredConfig : public testing::TestWithParam<StudyConfig> {};

TEST_P(MeasuredConfig, HasTheReferenceTrainersFactorsCountsAndPayload) {
  const StudyConfig& config = GetParam();
  const RunDescription run = RunOf(config, TheStudy().model, TheStudy().bucket_cap_bytes);
  const StepFigures figures = Figures(run, EngineKind::kAccounting);
  ExpectFactors(config, figures);
  ExpectCounts(config, figures);
  std::map<std::string, CollectiveFigures> named = ByName(figures);
  const double parameter_bytes = static_cast<double>(4 * ParameterElements(run.model));
  for (const auto& [name, payload] : config.payload_over_parameters) {
    EXPECT_EQ(static_cast<double>(named[name].payload_bytes) / parameter_bytes, payload) << name;
  }
}

// 8x64 instead of 8x2048, and a cap of four layers as there.
TEST_P(MeasuredConfig, PassesEveryCheckInSmallWithTheSameCounts) {
  const StudyConfig& config = GetParam();
  const int64_t bucket_cap_bytes = TheStudy().bucket_cap_bytes / (32 * 32);
  RunDescription run = RunOf(config, "mlp:8x64", bucket_cap_bytes);
  run.data.micro_batch_size = 4;
  const StepFigures figures = Figures(run, EngineKind::kCpu);
  ExpectFactors(config, figures);
  ExpectCounts(config, figures);
}

INSTANTIATE_TEST_SUITE_P(TheStudy, MeasuredConfig, testing::ValuesIn(TheStudy().configs),
                         [](const testing::TestParamInfo<StudyConfig>& info) {
                           return info.param.measurement + "_" + info.param.name;
                         });

TEST(StudyFixture, HasTheSixConfigsAndTorchsEight) {
  EXPECT_EQ(TheStudy().model, "mlp:8x2048");
  std::map<std::string, int> configs;
  for (const StudyConfig& config : TheStudy().configs) ++configs[config.measurement];
  EXPECT_EQ(configs, (std::map<std::string, int>{{"v100_x4", 6}, {"h200_x2", 8}}));
}

double PeakMinusSteadyMib(const RunDescription& run) {
  const StepFigures figures = Figures(run, EngineKind::kAccounting);
  const RankFigures& rank = figures.ranks.at(0);
  return static_cast<double>(rank.peak_bytes.value_or(0) - rank.bytes.steady()) / (1 << 20);
}

const StudyConfig& Measured(const std::string& name) {
  for (const StudyConfig& config : TheStudy().configs) {
    if (config.measurement == "v100_x4" && config.name == name) return config;
  }
  ADD_FAILURE() << "no config " << name;
  return TheStudy().configs.at(0);
}

double OurPeakMinusSteadyMib(const std::string& name) {
  return PeakMinusSteadyMib(RunOf(Measured(name), TheStudy().model, TheStudy().bucket_cap_bytes));
}

TEST(PeakMinusSteady, IsWithinOneMebibyteOfWhatPyTorchWasMeasuredToNeed) {
  EXPECT_EQ(OurPeakMinusSteadyMib("zero3_pre"), 56);
  EXPECT_NEAR(OurPeakMinusSteadyMib("zero3_pre"), *Measured("zero3_pre").peak_minus_steady_mib, 1);
  EXPECT_EQ(OurPeakMinusSteadyMib("zero3_post"), 44);
  EXPECT_NEAR(OurPeakMinusSteadyMib("zero3_post"), *Measured("zero3_post").peak_minus_steady_mib,
              1);
}

// PyTorch without prefetch gathers the next unit while the reduce-scatter still reads the full
// gradient, and so needs as much as with backward_post. Our rule waits for the reduction.
TEST(PeakMinusSteady, IsLowerWithoutPrefetchThanPyTorchsWhichDoesNotWaitForTheReduction) {
  EXPECT_EQ(*Measured("zero3_none").peak_minus_steady_mib,
            *Measured("zero3_post").peak_minus_steady_mib);
  EXPECT_EQ(OurPeakMinusSteadyMib("zero3_none"), 28);
}

// Elements of the forward all-gathers, in order.
std::vector<int64_t> ForwardGathers(const RunDescription& run) {
  std::vector<int64_t> elements;
  const auto engine = MakeAccountingEngine(run);
  if (!engine.ok()) return elements;
  const absl::StatusOr<const StepObservation*> observed = (*engine)->Step();
  if (!observed.ok()) return elements;
  for (const Event& event : (*observed)->events.at(0).events) {
    if (event.kind == EventKind::kCollective && event.phase == Phase::kForward) {
      elements.push_back(event.elements);
    }
  }
  return elements;
}

TEST(AllGatherSizes, AreTheRecordedOnesOfFsdp1AndFsdp2) {
  const Study& study = TheStudy();
  ASSERT_EQ(study.all_gather_elements.size(), 2u);
  for (const auto& [layout, elements] : study.all_gather_elements) {
    const RunDescription run =
        RunOf(study.all_gather_model, {Mode::kFullShard, Prefetch::kBackwardPre},
              *ParseLayoutKind(layout), study.all_gather_world_size);
    EXPECT_THAT(ForwardGathers(run), ElementsAreArray(elements)) << layout;
  }
}

// By rank, in a step that is not the first.
absl::StatusOr<std::vector<int64_t>> Peaks(const RunDescription& run) {
  const auto engine = MakeAccountingEngine(run);
  if (!engine.ok()) return engine.status();
  absl::StatusOr<const StepObservation*> observed = (*engine)->Step();
  if (observed.ok()) observed = (*engine)->Step();
  if (!observed.ok()) return observed.status();
  std::vector<int64_t> peaks;
  for (const RankFigures& rank : SummarizeStep(run, **observed).ranks) {
    peaks.push_back(rank.peak_bytes.value_or(-1));
  }
  return peaks;
}

constexpr ModeRow kPre = {Mode::kFullShard, Prefetch::kBackwardPre};
constexpr ModeRow kPost = {Mode::kFullShard, Prefetch::kBackwardPost};
constexpr ModeRow kNoPrefetch = {Mode::kFullShard, Prefetch::kNone};
constexpr ModeRow kShardGradOp = {Mode::kShardGradOp, Prefetch::kNotApplicable};

// What is wrong with "every rank's peak in row `more` >= in row `less`"; empty when it holds.
std::string PeakOrderFailure(const CaseSpec& spec, const ModeRow& more, const ModeRow& less) {
  std::vector<int64_t> peaks[2];
  std::string line;
  for (int i = 0; i < 2; ++i) {
    CaseSpec in_row = spec;
    in_row.mode = (i == 0 ? more : less).mode;
    in_row.prefetch = (i == 0 ? more : less).prefetch;
    const absl::StatusOr<RunDescription> run = MakeCase(in_row, ImportModel);
    if (!run.ok()) return run.status().ToString();
    const absl::StatusOr<std::vector<int64_t>> measured = Peaks(*run);
    if (!measured.ok()) return measured.status().ToString();
    peaks[i] = *measured;
    line = PrintRun(*run);
  }
  for (size_t rank = 0; rank < peaks[0].size(); ++rank) {
    if (peaks[0][rank] >= peaks[1][rank]) continue;
    return absl::StrCat(Name(more.mode), "/", Name(more.prefetch), " peaks at ", peaks[0][rank],
                        " on rank ", rank, ", below ", peaks[1][rank], " of ", line);
  }
  return "";
}

TEST(PeakOrder, MorePrefetchNeverNeedsLessOnRandomModels) {
  EXPECT_TRUE(rc::check("backward_pre >= backward_post >= none", [] {
    CaseLimits limits;
    limits.modes = {Mode::kFullShard};
    const CaseSpec spec = *AnyCase(limits);
    RC_ASSERT(PeakOrderFailure(spec, kPre, kPost) == "");
    RC_ASSERT(PeakOrderFailure(spec, kPost, kNoPrefetch) == "");
  }));
}

TEST(PeakOrder, KeepingUnitsUnshardedNeverNeedsLessOnRandomModels) {
  EXPECT_TRUE(rc::check("shard_grad_op >= full_shard", [] {
    CaseLimits limits;
    limits.modes = {Mode::kFullShard};
    const CaseSpec spec = *AnyCase(limits);
    RC_ASSERT(PeakOrderFailure(spec, kShardGradOp, kPre) == "");
  }));
}

TEST(PeakOrder, IsStrictInTheStudysModel) {
  const double in_shard_grad_op = OurPeakMinusSteadyMib("zero2_fsdp");
  EXPECT_GT(in_shard_grad_op, OurPeakMinusSteadyMib("zero3_pre"));
  EXPECT_GT(OurPeakMinusSteadyMib("zero3_pre"), OurPeakMinusSteadyMib("zero3_post"));
}

// The bits of every parameter after the last step, by tensor, put together from all ranks.
using ParameterBits = std::vector<std::vector<uint32_t>>;
constexpr uint32_t kNobodyHolds = 0xffffffff;

absl::Status AddShown(const StateSegment& shown, std::vector<uint32_t>& bits) {
  for (int64_t i = 0; i < shown.range.count; ++i) {
    uint32_t& kept = bits[static_cast<size_t>(shown.range.first + i)];
    const uint32_t value = std::bit_cast<uint32_t>(shown.values[i]);
    if (kept != kNobodyHolds && kept != value) return absl::InternalError("replicas differ");
    kept = value;
  }
  return absl::OkStatus();
}

absl::StatusOr<ParameterBits> Trained(const RunDescription& run) {
  const auto engine = MakeCpuEngine(run, int64_t{1} << 30);
  if (!engine.ok()) return engine.status();
  const StepObservation* observed = nullptr;
  for (int64_t step = 0; step < run.data.steps; ++step) {
    const absl::StatusOr<const StepObservation*> shown = (*engine)->Step();
    if (!shown.ok()) return shown.status();
    observed = *shown;
  }
  ParameterBits bits;
  for (const TensorSpec& tensor : run.model.tensors) {
    bits.emplace_back(static_cast<size_t>(Elements(tensor)), kNobodyHolds);
  }
  for (const RankState& state : observed->states) {
    for (const StateSegment& shown : state.segments) {
      if (shown.state != StateClass::kParameter || shown.tensor < 0) continue;
      const absl::Status status = AddShown(shown, bits[static_cast<size_t>(shown.tensor)]);
      if (!status.ok()) return status;
    }
  }
  for (const std::vector<uint32_t>& tensor : bits) {
    for (uint32_t value : tensor) {
      if (value == kNobodyHolds) return absl::InternalError("an element is on no rank");
    }
  }
  return bits;
}

void ExpectSame(const absl::StatusOr<ParameterBits>& reference, const RunDescription& run) {
  const absl::StatusOr<ParameterBits> trained = Trained(run);
  ASSERT_TRUE(reference.ok()) << reference.status();
  ASSERT_TRUE(trained.ok()) << trained.status();
  EXPECT_EQ(*trained, *reference) << PrintRun(run);
}

RunDescription OddMlp(const ModeRow& row, LayoutKind layout, int32_t world_size) {
  RunDescription run = RunOf("mlp:9,7,5,3,6:bias", row, layout, world_size);
  run.data.micro_batch_size = 2;
  return run;
}

TEST(SameTraining, EveryModeAndLayoutEndsWithTheSameParameterBits) {
  const absl::StatusOr<ParameterBits> reference = Trained(OddMlp({}, LayoutKind::kFlat, 3));
  for (const ModeRow& row : AllModeRows()) {
    for (LayoutKind layout :
         {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner}) {
      ExpectSame(reference, OddMlp(row, layout, 3));
    }
  }
}

TEST(SameTraining, BucketsChangeNoBits) {
  const absl::StatusOr<ParameterBits> reference = Trained(OddMlp({}, LayoutKind::kFlat, 3));
  for (const ModeRow& row : AllModeRows()) {
    for (int64_t bucket_cap_bytes : {1, 64, 300, 1 << 20}) {
      RunDescription run = OddMlp(row, LayoutKind::kFlat, 3);
      run.sharding.bucket_cap_bytes = bucket_cap_bytes;
      ExpectSame(reference, run);
    }
  }
}

// N ranks add their gradients in the order in which one rank adds N micro-batches, of the same
// samples: rank r's batch is micro-batch r's.
TEST(SameTraining, RanksAreWorthMicroBatchesOfOneRank) {
  for (int32_t ranks : {2, 3, 4, 8}) {
    RunDescription alone = OddMlp({}, LayoutKind::kFlat, 1);
    alone.data.num_micro_batches = ranks;
    const absl::StatusOr<ParameterBits> reference = Trained(alone);
    for (const ModeRow& row : AllModeRows()) {
      ExpectSame(reference, OddMlp(row, LayoutKind::kFlat, ranks));
    }
  }
}

TEST(SameTraining, EveryModeEndsWithTheSameBitsOnRandomCases) {
  EXPECT_TRUE(rc::check("modes agree", [] {
    CaseSpec spec = *AnyCase({});
    std::vector<ParameterBits> all;
    for (const ModeRow& row : AllModeRows()) {
      spec.mode = row.mode;
      spec.prefetch = row.prefetch;
      const absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
      if (!run.ok()) RC_FAIL(run.status().ToString());
      const absl::StatusOr<ParameterBits> trained = Trained(*run);
      if (!trained.ok()) RC_FAIL(trained.status().ToString());
      all.push_back(*trained);
      if (all.back() != all.front()) RC_FAIL(PrintRun(*run));
    }
  }));
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  shardproof::SetRapidCheckDefaults(/*max_success=*/60);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
