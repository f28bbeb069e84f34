// What a benchmark measured, as data, JSON and a table.
//
// The JSON, schema "shardproof.bench/1". Times are milliseconds, spreads ("cv") the coefficient
// of variation in percent (statistics.h), GB/s 1e9 bytes a second, MiB 2^20 bytes. "unstable"
// says that a cv is over 5. null: not observed, or there is no such thing in this run.
//
//   engine            "cuda": a GPU a rank, through NCCL; "cuda_shared": all ranks on one GPU
//   device            its name
//   world_size        ranks; `processes`: of the job, each with one rank, or 1 with all of them
//   tf32              whether matrix products might round their inputs to TF32
//   versions          {cuda_runtime, cuda_driver, cublas, nccl}, text
//   warmup_steps, bench_steps, witness_steps
//   modes             one object a mode row:
//     mode, prefetch, layout, run   `run` is the line that --run reads back
//     median_ms, p95_ms, cv, unstable, samples
//                     of one step, which a job has done when its last rank has: the maximum over
//                     ranks in each step. By events on the device, from a step's first operation
//                     to the end of its last
//     floor_ms        {median, p95, cv, unstable}: the step's matrix products alone, as one graph
//                     on each device, replayed after each timed step. Maximum over devices
//     floor_gemms, floor_gflop      of one rank
//     ratio_to_floor  {median, cv, unstable}: of the pairs of a step and the replay after it
//     exposed_communication_ms, exposed_communication_cv, exposed_communication_samples
//                     median over `witness_steps` steps of their own, watched through CUPTI, of the
//                     time in which a collective's kernel runs and nothing else does on the device
//                     (exposed.h); maximum over ranks. 0 at one rank. Of all those steps or of
//                     none: where one of them was not seen whole, the first two are null and the
//                     samples 0
//     exposed_communication_missing
//                     why they are null, as text; else null
//     unavoidable_ms  unavoidable.device_bytes.total at copy_gb_per_s plus unavoidable.bus_bytes at
//                     bus_gb_per_s (step_traffic.h says what is counted), of the rank that has most
//     unavoidable     {rank, device_bytes {input, bias, relu, loss, accumulate, scale, norm,
//                     local_copy, optimizer, total}, copy_gb_per_s {median, cv, unstable},
//                     bus_bytes, bus_gb_per_s {the same}, bus_measured_with {kind, payload_bytes}}
//                     copies count bytes read and bytes written. Both are measured before the
//                     mode's steps; the slowest rank's
//     memory          one object a rank: {rank, steady_mib, peak_mib, arena_mib,
//                     arena_waste_percent, workspace_mib, driver_steady_mib, driver_peak_mib}.
//                     steady: what the plan keeps between steps; peak: the most it has alive at
//                     once; arena: the memory it lies in, waste: (arena - peak) / peak;
//                     workspace: beside the arena. driver: what the driver gave for the arena, by
//                     how much its free memory fell: for the kept part allocated alone (steady),
//                     and for the whole arena (peak), so workspace and CUDA's own memory are not in
//                     it. null where that is not known: ranks share the device, or the fall cannot
//                     be that allocation's (DriverFigure in trainer/engines/cuda/rank_arena.h)
#ifndef TRAINER_BENCH_BENCH_REPORT_H_
#define TRAINER_BENCH_BENCH_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "invariants/run_description/run_description.h"
#include "trainer/bench/statistics.h"
#include "trainer/bench/step_traffic.h"

namespace shardproof {

// Of one rank, in bytes; as DeviceMemoryFigures of trainer/engines/cuda/cuda_engine.h, which is not
// everywhere. -1: not known.
struct BenchMemory {
  int32_t rank = 0;
  int64_t arena_steady = 0;
  int64_t arena_total = 0;
  int64_t plan_peak = 0;
  int64_t workspace = 0;
  int64_t driver_steady = -1;
  int64_t driver_peak = -1;
  bool operator==(const BenchMemory&) const = default;
};

// One mode's samples: of the ranks of one process, or of all of them after MergeSamples.
struct ModeSamples {
  std::vector<double> step_ms;
  std::vector<double> floor_ms;    // by step; empty: no matrix products
  std::vector<double> exposed_ms;  // one of each watched step; empty: not known
  std::string exposed_missing;     // then: why, in one line
  std::vector<double> copy_gb_per_s;
  std::vector<double> bus_gb_per_s;  // empty: nothing goes over a bus
  std::vector<BenchMemory> memory;   // by rank
  bool operator==(const ModeSamples&) const = default;
};

// Of all ranks: the longest time of each step, the lowest bandwidth of each sample, memory by rank.
// What one process does not know of exposed times is not known of all. InvalidArgument where the
// parts have different numbers of samples.
absl::StatusOr<ModeSamples> MergeSamples(absl::Span<const ModeSamples> parts);

// Text between the processes of a job. Decode: InvalidArgument that quotes what it cannot read.
std::string EncodeSamples(const ModeSamples& samples);
absl::StatusOr<ModeSamples> DecodeSamples(absl::string_view text);

struct BenchMachineFacts {
  std::string device = {};
  std::string cuda_runtime = {};  // "13.0", and so on
  std::string cuda_driver = {};
  std::string cublas = {};
  std::string nccl = {};
};

struct Unavoidable {
  int32_t rank = 0;  // the one with the most
  double ms = 0;
  StepTraffic traffic;
  Summary copy_gb_per_s;
  std::optional<Summary> bus_gb_per_s;
  std::optional<TypicalCollective> bus_measured_with;
};

struct ModeReport {
  RunDescription run;
  Summary step_ms;
  std::optional<Summary> floor_ms;
  int64_t floor_gemms = 0;
  double floor_flops = 0;
  std::optional<Summary> ratio_to_floor;
  std::optional<Summary> exposed_ms;
  std::string exposed_missing;  // why there is none
  Unavoidable unavoidable;
  std::vector<BenchMemory> memory;
};

// `samples`: of all ranks. `run`: one that PlanStep plans. InvalidArgument where samples are
// missing that the run must have, or exposed times without a reason.
absl::StatusOr<ModeReport> MakeModeReport(const RunDescription& run, const ModeSamples& samples);

struct BenchReport {
  std::string engine;
  BenchMachineFacts machine;
  int32_t world_size = 1;
  int32_t processes = 1;
  bool tf32 = false;
  int64_t warmup_steps = 0;
  int64_t bench_steps = 0;
  int64_t witness_steps = 0;
  std::vector<ModeReport> modes;
};

// One document with a newline at its end.
std::string BenchJson(const BenchReport& report);

// One row a mode, memory of the rank that has most. A figure whose cv is over 5 % has a star. Under
// it what its columns mean, and why exposed times are missing.
std::string BenchTable(const BenchReport& report);

}  // namespace shardproof

#endif  // TRAINER_BENCH_BENCH_REPORT_H_
