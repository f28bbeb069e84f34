#include "trainer/bench/bench_program.h"

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/run_description.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/run_case.h"
#include "trainer/bench/bench.h"
#include "trainer/bench/bench_report.h"
#include "trainer/bench/cuda_bench.h"

namespace shardproof {
namespace {

absl::Status Print(const BenchReport& report, bool table) {
  if (table) {
    std::cout << BenchTable(report) << std::flush;
  } else {
    std::cout << BenchJson(report) << std::flush;
    std::cerr << BenchTable(report) << std::flush;
  }
  if (std::cout) return absl::OkStatus();
  return absl::DataLossError("the report could not be written to stdout");
}

BenchOptions OptionsOf(const BenchRequest& request) {
  BenchOptions options;
  options.warmup_steps = request.warmup_steps;
  options.bench_steps = request.bench_steps;
  options.tf32 = request.engine.tf32;
  options.engine = std::string(Name(request.engine.engine));
  options.timeout = request.engine.timeout;
  return options;
}

}  // namespace

absl::Status RunBenchProgram(const BenchRequest& request, Job* job, int32_t device) {
  if (!NeedsGpus(request.engine.engine)) {
    return absl::InvalidArgumentError(absl::StrCat("a benchmark of the ",
                                                   Name(request.engine.engine),
                                                   " engine; accepted is cuda or cuda_shared"));
  }
  if (request.runs.empty()) {
    return absl::InvalidArgumentError("no mode to benchmark; accepted: one or more");
  }
  CudaBenchOptions machine_options;
  machine_options.world_size = request.runs[0].sharding.world_size;
  machine_options.shared_gpu = request.engine.engine == EngineKind::kCudaShared;
  machine_options.job = job;
  machine_options.device = device;
  machine_options.tf32 = request.engine.tf32;
  machine_options.timeout = request.engine.gpu_collective_timeout;
  const BenchOptions options = OptionsOf(request);
  std::vector<RunDescription> runs = request.runs;
  for (RunDescription& run : runs) run.data.steps = StepsOfBench(options);
  SHARDPROOF_ASSIGN_OR_RETURN(const std::unique_ptr<BenchMachine> machine,
                              MakeCudaBenchMachine(machine_options));
  SHARDPROOF_ASSIGN_OR_RETURN(const std::optional<BenchReport> report,
                              RunBench(runs, *machine, job, options));
  if (!report) return absl::OkStatus();
  return Print(*report, request.table);
}

}  // namespace shardproof
