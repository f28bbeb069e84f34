// //trainer:zero_train: one run in one sharding mode, trained by the engine alone.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/launch/launch_environment.h"
#include "invariants/observation/observation_io.h"
#include "invariants/report/figures.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/console.h"
#include "invariants/suite/cuda_case.h"
#include "invariants/suite/ranks_here.h"
#include "invariants/suite/run_case.h"
#include "trainer/bench/bench_program.h"
#include "trainer/engines/accounting_engine.h"
#include "trainer/engines/engine.h"
#include "trainer/train_report.h"
#include "trainer/train_request.h"

namespace shardproof {
namespace {

constexpr char kProgram[] = "zero_train";

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const TrainRequest& request, RanksHere& ranks) {
  if (request.engine.engine == EngineKind::kAccounting) return MakeAccountingEngine(request.run);
  CaseOptions options;
  options.engine = request.engine.engine;
  options.ranks = ranks.case_ranks();
  // A tenth stays for everything else on the machine.
  options.memory_limit_bytes = ranks.ShareOf(AvailableMemoryBytes() / 10 * 9);
  options.make_device_engine = CudaEngineFactory({.tf32 = request.engine.tf32,
                                                  .timeout = request.engine.gpu_collective_timeout,
                                                  .job = ranks.job(),
                                                  .device = ranks.local_rank()});
  absl::StatusOr<CaseEngine> made = MakeCaseEngine(request.run, options, /*with_oracle=*/false);
  SHARDPROOF_RETURN_IF_ERROR(ranks.AgreeOn(made.status()));
  return std::move(made->engine);
}

std::optional<double> MeanLoss(const std::vector<double>& losses) {
  if (losses.empty()) return std::nullopt;
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

// The observation file, a line a step, so that a run of any length needs no more memory. Does
// nothing without a path.
class ObservationFile {
 public:
  absl::Status Open(const std::string& path, const RunDescription& run) {
    path_ = path;
    if (path_.empty()) return absl::OkStatus();
    file_.open(path_);
    if (!file_) {
      return absl::InvalidArgumentError(absl::StrCat("--observe=", path_, ": cannot be written"));
    }
    return Write(PrintObservationHeader(run));
  }

  absl::Status Add(const StepObservation& step) {
    return path_.empty() ? absl::OkStatus() : Write(PrintObservationStep(step));
  }

 private:
  absl::Status Write(const std::string& line) {
    file_ << line << "\n" << std::flush;
    if (file_) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("--observe=", path_, ": could not be written whole"));
  }

  std::string path_;
  std::ofstream file_;
};

absl::Status TrainForRankZero(Engine& engine, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    SHARDPROOF_RETURN_IF_ERROR(engine.Step().status());
  }
  return absl::OkStatus();
}

// Losses appear while training goes on; in the table as lines of their own.
absl::Status Train(const TrainRequest& request, RanksHere& ranks) {
  const RunDescription& run = request.run;
  const bool prints_table = request.format == TrainFormat::kTable;
  SHARDPROOF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, MakeEngine(request, ranks));
  if (!ranks.leads()) return TrainForRankZero(*engine, run.data.steps);
  ObservationFile observation;
  SHARDPROOF_RETURN_IF_ERROR(observation.Open(request.observe, run));
  if (prints_table) std::cout << TrainHeading(run, request.engine.engine) << std::flush;
  std::vector<std::optional<double>> losses;
  StepFigures last_step;
  {
    // On a terminal the lines of losses are the progress.
    ProgressLine progress(!prints_table || isatty(STDOUT_FILENO) == 0);
    for (int64_t step = 0; step < run.data.steps; ++step) {
      SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const observed, engine->Step());
      SHARDPROOF_RETURN_IF_ERROR(observation.Add(*observed));
      losses.push_back(MeanLoss(observed->losses));
      if (prints_table && losses.back()) std::cout << LossLine(step, *losses.back()) << std::flush;
      if (step + 1 == run.data.steps) last_step = SummarizeStep(run, *observed);
      progress.Show(absl::StrCat("zero_train: step ", step + 1, " of ", run.data.steps));
    }
  }
  std::cout << (prints_table ? TrainTables(last_step)
                             : TrainJson(run, Name(request.engine.engine), losses, last_step))
            << std::flush;
  if (!std::cout) return absl::DataLossError("the report could not be written to stdout");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const absl::StatusOr<LaunchEnvironment> launch = ReadLaunchEnvironment(std::getenv);
  if (!launch.ok()) return ReportBadInput(kProgram, launch.status());
  RanksHere ranks(kProgram, *launch);
  absl::Status status = EnterCallersDirectory();
  if (!status.ok()) return ranks.Fail(status);
  const absl::StatusOr<TrainRequest> request = ParseTrainRequest(argc, argv, *launch);
  if (!request.ok()) return ranks.Fail(request.status());
  if (!request->help.empty()) {
    if (ranks.leads()) std::cout << request->help;
    return 0;
  }
  const StdoutForReports reports(NeedsGpus(request->engine.engine));
  status = ranks.Join(request->engine.timeout);
  if (status.ok()) {
    status = request->bench ? RunBenchProgram(*request->bench, ranks.job(), ranks.local_rank())
                            : Train(*request, ranks);
  }
  return status.ok() ? ranks.Leave(0) : ranks.Fail(status);
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
