// The benchmark: mode after mode on one machine, so that one job gives one table.
//
// What runs is behind BenchMachine (GPUs: cuda_bench.h); here is the order in which things are
// measured. For each mode: bandwidths, with nothing else on the device; then rounds, of which the
// first `warmup_steps` are dropped:
//
//   a step that nobody times   so that ranks, which the replay before has left at different
//                              times, begin the next one together
//   a timed step
//   a replay of the floor      the sample that is paired with this step
//
// and at last steps that are watched, because watching costs time. Their exposed times are a figure
// where every one of them is known: fewer samples would look as steady as all.
#ifndef TRAINER_BENCH_BENCH_H_
#define TRAINER_BENCH_BENCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/launch/job.h"
#include "invariants/run_description/run_description.h"
#include "trainer/bench/bench_report.h"
#include "trainer/bench/exposed.h"
#include "trainer/bench/step_traffic.h"

namespace shardproof {

// One mode, ready to run on this process's ranks. A vector has one value a local rank, or a local
// device; every call waits until the GPUs are done.
class BenchSubject {
 public:
  virtual ~BenchSubject() = default;
  // One training step: milliseconds.
  virtual absl::StatusOr<std::vector<double>> Step() = 0;
  // The step's matrix products alone: milliseconds. Empty where it has none.
  virtual absl::StatusOr<std::vector<double>> Floor() = 0;
  // One training step, and perhaps one before it: milliseconds of exposed communication, or why
  // they are not known.
  virtual absl::StatusOr<ExposedTimes> ExposedStep() = 0;
  virtual std::vector<BenchMemory> memory() const = 0;
};

class BenchMachine {
 public:
  virtual ~BenchMachine() = default;
  virtual absl::StatusOr<BenchMachineFacts> Facts() = 0;
  // GB/s of copies on the device, bytes read and written both counted: samples of the slowest
  // local device.
  virtual absl::StatusOr<std::vector<double>> CopyBandwidth() = 0;
  // GB/s of bus bytes of this collective of all ranks: samples of the slowest local rank.
  virtual absl::StatusOr<std::vector<double>> BusBandwidth(const TypicalCollective& call) = 0;
  // One mode at a time: what the last call gave is gone. `run` outlives the result.
  virtual absl::StatusOr<std::unique_ptr<BenchSubject>> Prepare(const RunDescription& run) = 0;
};

struct BenchOptions {
  int64_t warmup_steps = 10;
  int64_t bench_steps = 60;
  int64_t witness_steps = 5;
  bool tf32 = false;
  std::string engine;                           // its name, for the report
  absl::Duration timeout = absl::Seconds(120);  // of gathering samples from other processes
};

// Measures each run on `machine`. `job`: null where all ranks are in this process; else all
// processes call this with equal arguments, and rank 0's gets the report, the others nothing.
// Errors name the mode.
absl::StatusOr<std::optional<BenchReport>> RunBench(absl::Span<const RunDescription> runs,
                                                    BenchMachine& machine, Job* job,
                                                    const BenchOptions& options);

// The most steps that one run makes in a benchmark, all included: what RunDescription::data.steps
// is to be.
int64_t StepsOfBench(const BenchOptions& options);

}  // namespace shardproof

#endif  // TRAINER_BENCH_BENCH_H_
