#include "trainer/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/plan/planner.h"
#include "trainer/sharding/placement.h"

namespace shardproof {
namespace {

// A job's step ends when its last rank's does.
absl::StatusOr<double> Slowest(absl::StatusOr<std::vector<double>> ranks) {
  if (!ranks.ok()) return ranks.status();
  double slowest = 0;
  for (double ms : *ranks) {
    if (!std::isfinite(ms) || ms < 0) {
      return absl::InternalError(absl::StrCat("a time of ", ms, " ms; accepted is 0 or more"));
    }
    slowest = std::max(slowest, ms);
  }
  return slowest;
}

// A subject without matrix products has no floor, in every round alike.
absl::Status Append(absl::StatusOr<std::vector<double>> ranks, std::vector<double>& samples) {
  if (ranks.ok() && ranks->empty()) return absl::OkStatus();
  SHARDPROOF_ASSIGN_OR_RETURN(const double slowest, Slowest(std::move(ranks)));
  samples.push_back(slowest);
  return absl::OkStatus();
}

absl::Status MeasureBandwidths(const RunDescription& run, BenchMachine& machine,
                               ModeSamples& samples) {
  SHARDPROOF_ASSIGN_OR_RETURN(samples.copy_gb_per_s, machine.CopyBandwidth());
  // Rank 0's plan, on every rank: they must all measure with the same collective.
  const std::optional<TypicalCollective> call =
      TypicalOf(PlanStep(run, MakePlacement(run), Rank{0}, /*step=*/1));
  if (!call) return absl::OkStatus();
  SHARDPROOF_ASSIGN_OR_RETURN(samples.bus_gb_per_s, machine.BusBandwidth(*call));
  return absl::OkStatus();
}

absl::Status MeasureRounds(BenchSubject& subject, int64_t rounds, ModeSamples& samples) {
  for (int64_t round = 0; round < rounds; ++round) {
    SHARDPROOF_RETURN_IF_ERROR(subject.Step().status());
    SHARDPROOF_RETURN_IF_ERROR(Append(subject.Step(), samples.step_ms));
    SHARDPROOF_RETURN_IF_ERROR(Append(subject.Floor(), samples.floor_ms));
  }
  return absl::OkStatus();
}

// Every step is made, known or not: ranks of other processes make it too.
absl::Status MeasureExposed(BenchSubject& subject, int64_t steps, ModeSamples& samples) {
  int64_t unknown = 0;
  std::string why = "no step was watched";
  for (int64_t step = 0; step < steps; ++step) {
    SHARDPROOF_ASSIGN_OR_RETURN(ExposedTimes times, subject.ExposedStep());
    if (!times.ms.empty()) {
      SHARDPROOF_RETURN_IF_ERROR(Append(std::move(times.ms), samples.exposed_ms));
    } else if (unknown++ == 0) {
      why = std::move(times.missing);
    }
  }
  if (steps > 0 && unknown == 0) return absl::OkStatus();
  samples.exposed_ms.clear();
  samples.exposed_missing =
      unknown == steps ? why : absl::StrCat("in ", unknown, " of ", steps, " steps ", why);
  return absl::OkStatus();
}

absl::StatusOr<ModeSamples> MeasureMode(const RunDescription& run, BenchMachine& machine,
                                        const BenchOptions& options) {
  ModeSamples samples;
  SHARDPROOF_RETURN_IF_ERROR(MeasureBandwidths(run, machine, samples));
  SHARDPROOF_ASSIGN_OR_RETURN(const std::unique_ptr<BenchSubject> subject, machine.Prepare(run));
  ModeSamples dropped;
  SHARDPROOF_RETURN_IF_ERROR(MeasureRounds(*subject, options.warmup_steps, dropped));
  SHARDPROOF_RETURN_IF_ERROR(MeasureRounds(*subject, options.bench_steps, samples));
  SHARDPROOF_RETURN_IF_ERROR(MeasureExposed(*subject, options.witness_steps, samples));
  samples.memory = subject->memory();
  return samples;
}

// Nothing on other ranks than 0.
absl::StatusOr<std::optional<ModeSamples>> Gathered(const ModeSamples& samples, Job* job,
                                                    absl::Duration timeout) {
  if (job == nullptr) return std::make_optional(samples);
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                              job->Gather(EncodeSamples(samples), timeout));
  if (job->rank() != Rank{0}) return std::optional<ModeSamples>();
  std::vector<ModeSamples> parts;
  for (const std::string& text : texts) {
    SHARDPROOF_ASSIGN_OR_RETURN(parts.emplace_back(), DecodeSamples(text));
  }
  SHARDPROOF_ASSIGN_OR_RETURN(ModeSamples merged, MergeSamples(parts));
  return std::make_optional(std::move(merged));
}

absl::StatusOr<std::optional<ModeReport>> BenchMode(const RunDescription& run,
                                                    BenchMachine& machine, Job* job,
                                                    const BenchOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  SHARDPROOF_ASSIGN_OR_RETURN(const ModeSamples local, MeasureMode(run, machine, options));
  SHARDPROOF_ASSIGN_OR_RETURN(const std::optional<ModeSamples> all,
                              Gathered(local, job, options.timeout));
  if (!all) return std::optional<ModeReport>();
  SHARDPROOF_ASSIGN_OR_RETURN(ModeReport report, MakeModeReport(run, *all));
  return std::make_optional(std::move(report));
}

absl::Status InMode(const RunDescription& run, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(ModeRowName(run.sharding), ": ", status.message()));
}

}  // namespace

int64_t StepsOfBench(const BenchOptions& options) {
  return 2 * (options.warmup_steps + options.bench_steps + options.witness_steps);
}

absl::StatusOr<std::optional<BenchReport>> RunBench(absl::Span<const RunDescription> runs,
                                                    BenchMachine& machine, Job* job,
                                                    const BenchOptions& options) {
  if (runs.empty())
    return absl::InvalidArgumentError("no mode to benchmark; accepted: one or more");
  BenchReport report;
  SHARDPROOF_ASSIGN_OR_RETURN(report.machine, machine.Facts());
  report.engine = options.engine;
  report.world_size = runs[0].sharding.world_size.value;
  report.processes = job == nullptr ? 1 : job->world_size().value;
  report.tf32 = options.tf32;
  report.warmup_steps = options.warmup_steps;
  report.bench_steps = options.bench_steps;
  report.witness_steps = options.witness_steps;
  for (const RunDescription& run : runs) {
    absl::StatusOr<std::optional<ModeReport>> mode = BenchMode(run, machine, job, options);
    if (!mode.ok()) return InMode(run, mode.status());
    if (*mode) report.modes.push_back(**std::move(mode));
  }
  if (job != nullptr && job->rank() != Rank{0}) return std::optional<BenchReport>();
  return std::make_optional(std::move(report));
}

}  // namespace shardproof
