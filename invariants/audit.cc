// //invariants:audit: every sharding mode of a model, run, observed and judged.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/audit_request.h"
#include "invariants/report/audit_report.h"
#include "invariants/suite/console.h"
#include "invariants/suite/run_case.h"

namespace shardproof {
namespace {

int BadInput(const absl::Status& status) { return ReportBadInput("audit", status); }

// Modes run side by side on the machine's cores while their memory fits beside each other.
class AuditRunner {
 public:
  AuditRunner(const AuditRequest& request, int64_t memory_bytes)
      : request_(request), memory_bytes_(memory_bytes), results_(request.runs.size()) {}

  absl::StatusOr<AuditReport> Run() {
    const size_t cores = std::max(1u, std::thread::hardware_concurrency());
    const size_t workers = std::min(cores, request_.runs.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < workers; ++i) {
      threads.emplace_back(
          [this, workers] { Work(memory_bytes_ / static_cast<int64_t>(workers)); });
    }
    for (std::thread& thread : threads) thread.join();
    AuditReport report;
    report.engine = request_.engine;
    report.required = request_.report.required;
    for (size_t i = 0; i < results_.size(); ++i) {
      if (results_[i]->status().code() == absl::StatusCode::kResourceExhausted && workers > 1) {
        results_[i] = RunMode(i, memory_bytes_);
      }
      if (!results_[i]->ok()) return results_[i]->status();
      report.modes.push_back({request_.runs[i], **std::move(results_[i])});
    }
    return report;
  }

 private:
  void Work(int64_t memory_bytes) {
    for (size_t i = next_++; i < request_.runs.size(); i = next_++) {
      results_[i] = RunMode(i, memory_bytes);
    }
  }

  absl::StatusOr<CaseResult> RunMode(size_t i, int64_t memory_bytes) {
    CaseOptions options;
    options.engine = request_.engine;
    options.memory_limit_bytes = memory_bytes;
    options.on_step = [this, i](int64_t done) {
      const RunDescription& run = request_.runs[i];
      progress_.Show(absl::StrCat("audit: ", ModeRowName(run.sharding), " step ", done, " of ",
                                  run.data.steps));
    };
    return RunCase(request_.runs[i], options);
  }

  const AuditRequest& request_;
  const int64_t memory_bytes_;
  std::vector<std::optional<absl::StatusOr<CaseResult>>> results_;
  std::atomic<size_t> next_{0};
  ProgressLine progress_;
};

int Main(int argc, char** argv) {
  const absl::Status directory = EnterCallersDirectory();
  if (!directory.ok()) return BadInput(directory);
  const absl::StatusOr<AuditRequest> request = ParseAuditRequest(argc, argv);
  if (!request.ok()) return BadInput(request.status());
  if (!request->help.empty()) {
    std::cout << request->help;
    return 0;
  }
  std::ofstream file;
  const absl::Status writable = OpenReport(request->report, file);
  if (!writable.ok()) return BadInput(writable);
  if (request->explain) {
    std::ostream& explanation =
        request->report.format == AuditFormat::kJson && request->report.out.empty() ? std::cerr
                                                                                    : std::cout;
    for (const RunDescription& run : request->runs) explanation << ExplainStep(run);
    explanation << std::flush;
  }
  // A tenth stays for everything else on the machine.
  const int64_t memory_bytes = AvailableMemoryBytes() / 10 * 9;
  const absl::StatusOr<AuditReport> report = AuditRunner(*request, memory_bytes).Run();
  if (!report.ok()) return BadInput(report.status());
  const absl::Status printed = PrintReport(*report, request->report, file);
  if (!printed.ok()) return BadInput(printed);
  const int exit_code = AuditExitCode(*report);
  if (exit_code == 2) {
    BadInput(absl::UnimplementedError(
        absl::StrCat("every mode was refused: ", report->modes[0].result.refusal)));
  }
  return exit_code;
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
