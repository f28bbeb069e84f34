// //trainer:zero_train: one run in one sharding mode, trained by the engine alone.
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/observation/observation_io.h"
#include "invariants/report/figures.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/console.h"
#include "trainer/engines/accounting_engine.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/engines/engine_parts.h"
#include "trainer/engines/provenance_engine.h"
#include "trainer/train_report.h"
#include "trainer/train_request.h"

namespace shardproof {
namespace {

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const TrainRequest& request) {
  if (request.engine == EngineKind::kAccounting) return MakeAccountingEngine(request.run);
  if (request.engine == EngineKind::kProvenance) {
    return MakeProvenanceEngine(request.run, PlannedParts(request.run), AvailableMemoryBytes());
  }
  // A tenth stays for everything else on the machine.
  return MakeCpuEngine(request.run, AvailableMemoryBytes() / 10 * 9);
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

// Losses appear while training goes on; in the table as lines of their own.
absl::Status Train(const TrainRequest& request) {
  const RunDescription& run = request.run;
  const bool prints_table = request.format == TrainFormat::kTable;
  SHARDPROOF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, MakeEngine(request));
  ObservationFile observation;
  SHARDPROOF_RETURN_IF_ERROR(observation.Open(request.observe, run));
  if (prints_table) std::cout << TrainHeading(run, Name(request.engine)) << std::flush;
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
                             : TrainJson(run, Name(request.engine), losses, last_step))
            << std::flush;
  if (!std::cout) return absl::DataLossError("the report could not be written to stdout");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  absl::Status status = EnterCallersDirectory();
  if (!status.ok()) return ReportBadInput("zero_train", status);
  const absl::StatusOr<TrainRequest> request = ParseTrainRequest(argc, argv);
  if (!request.ok()) return ReportBadInput("zero_train", request.status());
  if (!request->help.empty()) {
    std::cout << request->help;
    return 0;
  }
  status = Train(*request);
  return status.ok() ? 0 : ReportBadInput("zero_train", status);
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
