#include "trainer/bench/bench_report.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "collectives/traffic_model.h"
#include "invariants/report/figures_json.h"
#include "invariants/report/report_text.h"
#include "invariants/report/text_table.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/plan/planner.h"
#include "trainer/sharding/placement.h"

namespace shardproof {
namespace {

struct SampleField {
  const char* name;
  std::vector<double> ModeSamples::*values;
  bool slowest_is_largest;  // times, not bandwidths
};

constexpr SampleField kFields[] = {
    {"step_ms", &ModeSamples::step_ms, true},
    {"floor_ms", &ModeSamples::floor_ms, true},
    {"exposed_ms", &ModeSamples::exposed_ms, true},
    {"copy_gb_per_s", &ModeSamples::copy_gb_per_s, false},
    {"bus_gb_per_s", &ModeSamples::bus_gb_per_s, false},
};

constexpr absl::string_view kMemory = "memory";
constexpr absl::string_view kExposedMissing = "exposed_missing ";

absl::Status Unreadable(absl::string_view line) {
  return absl::InvalidArgumentError(
      absl::StrCat("benchmark samples of another process: cannot read '", line.substr(0, 80), "'"));
}

absl::Status ReadValues(absl::string_view line, absl::Span<const absl::string_view> words,
                        std::vector<double>& values) {
  for (absl::string_view word : words) {
    double value = 0;
    if (!absl::SimpleAtod(word, &value)) return Unreadable(line);
    values.push_back(value);
  }
  return absl::OkStatus();
}

absl::Status ReadMemory(absl::string_view line, absl::Span<const absl::string_view> words,
                        ModeSamples& samples) {
  BenchMemory memory;
  int64_t* const fields[] = {&memory.arena_steady, &memory.arena_total,   &memory.plan_peak,
                             &memory.workspace,    &memory.driver_steady, &memory.driver_peak};
  if (words.size() != 1 + std::size(fields)) return Unreadable(line);
  if (!absl::SimpleAtoi(words[0], &memory.rank)) return Unreadable(line);
  for (size_t i = 0; i < std::size(fields); ++i) {
    if (!absl::SimpleAtoi(words[i + 1], fields[i])) return Unreadable(line);
  }
  samples.memory.push_back(memory);
  return absl::OkStatus();
}

absl::Status ReadLine(absl::string_view line, ModeSamples& samples) {
  if (absl::ConsumePrefix(&line, kExposedMissing)) {
    samples.exposed_missing = std::string(line);
    return absl::OkStatus();
  }
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  const absl::Span<const absl::string_view> values = absl::MakeConstSpan(words).subspan(1);
  if (words[0] == kMemory) return ReadMemory(line, values, samples);
  for (const SampleField& field : kFields) {
    if (words[0] == field.name) return ReadValues(line, values, samples.*field.values);
  }
  return Unreadable(line);
}

// Why the processes together do not know the exposed times; empty if all do.
std::string ExposedMissing(absl::Span<const ModeSamples> parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].exposed_missing.empty()) continue;
    return parts.size() == 1 ? parts[i].exposed_missing
                             : absl::StrCat("process ", i, ": ", parts[i].exposed_missing);
  }
  return "";
}

// Of all ranks, the one whose unavoidable time is the longest.
Unavoidable UnavoidableOf(const RunDescription& run, const Placement& placement,
                          const ModeSamples& samples) {
  Unavoidable most;
  most.copy_gb_per_s = Summarize(samples.copy_gb_per_s);
  if (!samples.bus_gb_per_s.empty()) most.bus_gb_per_s = Summarize(samples.bus_gb_per_s);
  most.ms = -1;
  for (int32_t rank = 0; rank < run.sharding.world_size.value; ++rank) {
    const StepPlan plan = PlanStep(run, placement, Rank{rank}, /*step=*/1);
    if (rank == 0) most.bus_measured_with = TypicalOf(plan);
    const StepTraffic traffic = TrafficOf(run, placement, plan);
    const double ms = UnavoidableMs(traffic, most.copy_gb_per_s.median,
                                    most.bus_gb_per_s ? most.bus_gb_per_s->median : 0);
    if (ms <= most.ms) continue;
    most.ms = ms;
    most.rank = rank;
    most.traffic = traffic;
  }
  return most;
}

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

OrderedJson MiBJson(int64_t bytes) { return bytes < 0 ? OrderedJson() : NumberJson(MiB(bytes)); }

// As Arena::waste: what the arena has beyond the plan's peak, as a part of it.
double WastePercent(const BenchMemory& memory) {
  if (memory.plan_peak == 0) return 0;
  return static_cast<double>(memory.arena_total - memory.plan_peak) /
         static_cast<double>(memory.plan_peak) * 100;
}

OrderedJson SummaryJson(const std::optional<Summary>& summary, bool with_p95) {
  if (!summary) return {};
  OrderedJson json;
  json["median"] = NumberJson(summary->median);
  if (with_p95) json["p95"] = NumberJson(summary->p95);
  json["cv"] = NumberJson(summary->cv_percent);
  json["unstable"] = summary->unstable;
  return json;
}

OrderedJson DeviceBytesJson(const StepTraffic& traffic) {
  OrderedJson json;
  json["input"] = traffic.input;
  json["bias"] = traffic.bias;
  json["relu"] = traffic.relu;
  json["loss"] = traffic.loss;
  json["accumulate"] = traffic.accumulate;
  json["scale"] = traffic.scale;
  json["norm"] = traffic.norm;
  json["local_copy"] = traffic.local_copy;
  json["optimizer"] = traffic.optimizer;
  json["total"] = traffic.device();
  return json;
}

OrderedJson UnavoidableJson(const Unavoidable& unavoidable) {
  OrderedJson json;
  json["rank"] = unavoidable.rank;
  json["device_bytes"] = DeviceBytesJson(unavoidable.traffic);
  json["copy_gb_per_s"] = SummaryJson(unavoidable.copy_gb_per_s, /*with_p95=*/false);
  json["bus_bytes"] = unavoidable.traffic.bus;
  json["bus_gb_per_s"] = SummaryJson(unavoidable.bus_gb_per_s, /*with_p95=*/false);
  json["bus_measured_with"] = OrderedJson();
  if (unavoidable.bus_measured_with) {
    const TypicalCollective& with = *unavoidable.bus_measured_with;
    OrderedJson& call = json["bus_measured_with"];
    call["kind"] = std::string(Name(with.kind));
    call["payload_bytes"] = PayloadBytes(with.kind, with.dtype, with.elements);
  }
  return json;
}

OrderedJson MemoryJson(absl::Span<const BenchMemory> ranks) {
  OrderedJson json = OrderedJson::array();
  for (const BenchMemory& memory : ranks) {
    OrderedJson rank;
    rank["rank"] = memory.rank;
    rank["steady_mib"] = MiBJson(memory.arena_steady);
    rank["peak_mib"] = MiBJson(memory.plan_peak);
    rank["arena_mib"] = MiBJson(memory.arena_total);
    rank["arena_waste_percent"] = NumberJson(WastePercent(memory));
    rank["workspace_mib"] = MiBJson(memory.workspace);
    rank["driver_steady_mib"] = MiBJson(memory.driver_steady);
    rank["driver_peak_mib"] = MiBJson(memory.driver_peak);
    json.push_back(std::move(rank));
  }
  return json;
}

OrderedJson ModeJson(const ModeReport& mode) {
  OrderedJson json;
  json["mode"] = std::string(Name(mode.run.sharding.mode));
  json["prefetch"] = PrefetchJson(mode.run.sharding);
  json["layout"] = std::string(Name(mode.run.sharding.layout));
  json["run"] = PrintRun(mode.run);
  json["median_ms"] = NumberJson(mode.step_ms.median);
  json["p95_ms"] = NumberJson(mode.step_ms.p95);
  json["cv"] = NumberJson(mode.step_ms.cv_percent);
  json["unstable"] = mode.step_ms.unstable;
  json["samples"] = mode.step_ms.samples;
  json["floor_ms"] = SummaryJson(mode.floor_ms, /*with_p95=*/true);
  json["floor_gemms"] = mode.floor_gemms;
  json["floor_gflop"] = NumberJson(mode.floor_flops / 1e9);
  json["ratio_to_floor"] = SummaryJson(mode.ratio_to_floor, /*with_p95=*/false);
  json["exposed_communication_ms"] =
      mode.exposed_ms ? NumberJson(mode.exposed_ms->median) : OrderedJson();
  json["exposed_communication_cv"] =
      mode.exposed_ms ? NumberJson(mode.exposed_ms->cv_percent) : OrderedJson();
  json["exposed_communication_samples"] = mode.exposed_ms ? mode.exposed_ms->samples : 0;
  json["exposed_communication_missing"] =
      mode.exposed_ms ? OrderedJson() : OrderedJson(mode.exposed_missing);
  json["unavoidable_ms"] = NumberJson(mode.unavoidable.ms);
  json["unavoidable"] = UnavoidableJson(mode.unavoidable);
  json["memory"] = MemoryJson(mode.memory);
  return json;
}

std::string Starred(double value, bool unstable) {
  return absl::StrFormat("%.3f%s", value, unstable ? "*" : "");
}

std::string Starred(const std::optional<Summary>& summary) {
  return summary ? Starred(summary->median, summary->unstable) : "-";
}

// The most of any rank; "-" where none knows.
std::string MostMiB(absl::Span<const BenchMemory> ranks, int64_t BenchMemory::*figure) {
  int64_t most = -1;
  for (const BenchMemory& memory : ranks) most = std::max(most, memory.*figure);
  return most < 0 ? "-" : absl::StrFormat("%.1f", MiB(most));
}

std::vector<std::string> TableRow(const ModeReport& mode) {
  double waste = 0;
  for (const BenchMemory& memory : mode.memory) waste = std::max(waste, WastePercent(memory));
  return {ModeRowName(mode.run.sharding),
          Starred(mode.step_ms),
          absl::StrFormat("%.3f", mode.step_ms.p95),
          absl::StrFormat("%.2f", mode.step_ms.cv_percent),
          Starred(mode.floor_ms),
          Starred(mode.ratio_to_floor),
          absl::StrFormat("%.3f", mode.unavoidable.ms),
          Starred(mode.exposed_ms),
          MostMiB(mode.memory, &BenchMemory::arena_steady),
          MostMiB(mode.memory, &BenchMemory::plan_peak),
          MostMiB(mode.memory, &BenchMemory::driver_peak),
          absl::StrFormat("%.2f", waste)};
}

}  // namespace

absl::StatusOr<ModeSamples> MergeSamples(absl::Span<const ModeSamples> parts) {
  if (parts.empty()) return absl::InvalidArgumentError("no benchmark samples of any process");
  ModeSamples merged = parts[0];
  merged.exposed_missing = ExposedMissing(parts);
  for (const ModeSamples& part : parts.subspan(1)) {
    for (const SampleField& field : kFields) {
      if (field.values == &ModeSamples::exposed_ms && !merged.exposed_missing.empty()) continue;
      std::vector<double>& slowest = merged.*field.values;
      const std::vector<double>& values = part.*field.values;
      if (values.size() != slowest.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("one process has ", slowest.size(), " samples of ", field.name,
                         ", another ", values.size(), "; accepted is the same number on each"));
      }
      for (size_t i = 0; i < values.size(); ++i) {
        slowest[i] = field.slowest_is_largest ? std::max(slowest[i], values[i])
                                              : std::min(slowest[i], values[i]);
      }
    }
    merged.memory.insert(merged.memory.end(), part.memory.begin(), part.memory.end());
  }
  if (!merged.exposed_missing.empty()) merged.exposed_ms.clear();
  std::sort(merged.memory.begin(), merged.memory.end(),
            [](const BenchMemory& a, const BenchMemory& b) { return a.rank < b.rank; });
  return merged;
}

std::string EncodeSamples(const ModeSamples& samples) {
  std::string text;
  for (const SampleField& field : kFields) {
    absl::StrAppend(&text, field.name);
    // As many digits as bring back the same bits.
    for (double value : samples.*field.values) absl::StrAppendFormat(&text, " %.17g", value);
    absl::StrAppend(&text, "\n");
  }
  if (!samples.exposed_missing.empty()) {
    absl::StrAppend(&text, kExposedMissing,
                    absl::StrReplaceAll(samples.exposed_missing, {{"\n", " "}}), "\n");
  }
  for (const BenchMemory& memory : samples.memory) {
    absl::StrAppend(&text, kMemory, " ", memory.rank, " ", memory.arena_steady, " ",
                    memory.arena_total, " ");
    absl::StrAppend(&text, memory.plan_peak, " ", memory.workspace, " ", memory.driver_steady, " ",
                    memory.driver_peak, "\n");
  }
  return text;
}

absl::StatusOr<ModeSamples> DecodeSamples(absl::string_view text) {
  ModeSamples samples;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    SHARDPROOF_RETURN_IF_ERROR(ReadLine(line, samples));
  }
  return samples;
}

absl::StatusOr<ModeReport> MakeModeReport(const RunDescription& run, const ModeSamples& samples) {
  const Placement placement = MakePlacement(run);
  const StepPlan plan = PlanStep(run, placement, Rank{0}, /*step=*/1);
  const std::vector<Gemm> gemms = StepGemms(run, placement, plan);
  const bool needs_bus = TypicalOf(plan).has_value();
  if (samples.step_ms.empty() || samples.copy_gb_per_s.empty() ||
      samples.floor_ms.empty() != gemms.empty() || samples.bus_gb_per_s.empty() == needs_bus) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a benchmark of ", ModeRowName(run.sharding), " with ", samples.step_ms.size(), " steps, ",
        samples.floor_ms.size(), " replays of ", gemms.size(), " products, ",
        samples.copy_gb_per_s.size(), " copies and ", samples.bus_gb_per_s.size(),
        " bus transfers; accepted is at least one of each that the run has"));
  }
  if (samples.exposed_ms.empty() == samples.exposed_missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a benchmark of ", ModeRowName(run.sharding), " with ",
                     samples.exposed_ms.size(), " exposed times and the reason '",
                     samples.exposed_missing, "' why there are none; accepted is one of the two"));
  }
  ModeReport report;
  report.run = run;
  report.step_ms = Summarize(samples.step_ms);
  report.floor_gemms = static_cast<int64_t>(gemms.size());
  report.floor_flops = Flops(gemms);
  if (!gemms.empty()) {
    report.floor_ms = Summarize(samples.floor_ms);
    SHARDPROOF_ASSIGN_OR_RETURN(report.ratio_to_floor,
                                PairedRatio(samples.step_ms, samples.floor_ms));
  }
  if (!samples.exposed_ms.empty()) report.exposed_ms = Summarize(samples.exposed_ms);
  report.exposed_missing = samples.exposed_missing;
  report.unavoidable = UnavoidableOf(run, placement, samples);
  report.memory = samples.memory;
  return report;
}

std::string BenchJson(const BenchReport& report) {
  OrderedJson json;
  json["schema"] = "shardproof.bench/1";
  json["engine"] = report.engine;
  json["device"] = report.machine.device;
  json["world_size"] = report.world_size;
  json["processes"] = report.processes;
  json["tf32"] = report.tf32;
  OrderedJson& versions = json["versions"];
  versions["cuda_runtime"] = report.machine.cuda_runtime;
  versions["cuda_driver"] = report.machine.cuda_driver;
  versions["cublas"] = report.machine.cublas;
  versions["nccl"] = report.machine.nccl;
  json["warmup_steps"] = report.warmup_steps;
  json["bench_steps"] = report.bench_steps;
  json["witness_steps"] = report.witness_steps;
  json["modes"] = OrderedJson::array();
  for (const ModeReport& mode : report.modes) json["modes"].push_back(ModeJson(mode));
  return PrintJson(json);
}

std::string BenchTable(const BenchReport& report) {
  TextTable table({"mode", "median ms", "p95 ms", "cv %", "floor ms", "x floor", "unavoidable ms",
                   "exposed ms", "steady MiB", "peak MiB", "driver MiB", "waste %"});
  for (const ModeReport& mode : report.modes) table.Add(TableRow(mode));
  std::string text;
  if (!report.modes.empty()) {
    absl::StrAppend(&text, DescribeRun(report.modes[0].run, report.engine), "\n");
  }
  absl::StrAppend(&text, report.machine.device, ", ", report.bench_steps, " timed steps after ",
                  report.warmup_steps, "; of each step the slowest rank\n", table.Print());
  absl::StrAppend(
      &text,
      "floor: the step's matrix products alone; unavoidable: its other bytes at measured "
      "bandwidths;\nexposed: collectives with nothing beside them; driver MiB: what the driver "
      "gave for the arena, in\nwhich the plan's buffers lie; -: not known; *: varies by more than "
      "5 %\n");
  for (const ModeReport& mode : report.modes) {
    if (mode.exposed_ms) continue;
    absl::StrAppend(&text, "no exposed ms of ", ModeRowName(mode.run.sharding), ": ",
                    mode.exposed_missing, "\n");
  }
  return text;
}

}  // namespace shardproof
