// //invariants:audit: every sharding mode of a model, run, observed and judged.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/launch/launch_environment.h"
#include "invariants/audit_request.h"
#include "invariants/report/audit_report.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/console.h"
#include "invariants/suite/cuda_case.h"
#include "invariants/suite/ranks_here.h"
#include "invariants/suite/run_case.h"

namespace shardproof {
namespace {

constexpr char kProgram[] = "audit";

// Modes run side by side on the machine's cores while their memory fits beside each other. One
// after the other where they would share GPUs, or ranks of other processes.
class AuditRunner {
 public:
  AuditRunner(const AuditRequest& request, RanksHere& ranks, int64_t memory_bytes)
      : request_(request),
        memory_bytes_(memory_bytes),
        results_(request.runs.size()),
        one_by_one_(ranks.in_processes() || NeedsGpus(request.engine.engine)),
        progress_(ranks.leads()) {
    options_.engine = request.engine.engine;
    options_.ranks = ranks.case_ranks();
    options_.make_device_engine =
        CudaEngineFactory({.tf32 = request.engine.tf32,
                           .timeout = request.engine.gpu_collective_timeout,
                           .job = ranks.job(),
                           .device = ranks.local_rank()});
  }

  absl::StatusOr<AuditReport> Run() {
    const size_t cores = std::max(1u, std::thread::hardware_concurrency());
    const size_t workers = one_by_one_ ? 1 : std::min(cores, request_.runs.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < workers; ++i) {
      threads.emplace_back(
          [this, workers] { Work(memory_bytes_ / static_cast<int64_t>(workers)); });
    }
    for (std::thread& thread : threads) thread.join();
    AuditReport report;
    report.engine = request_.engine.engine;
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
      // Where one rank has failed the others cannot be counted on.
      if (one_by_one_ && !results_[i]->ok()) return;
    }
  }

  absl::StatusOr<CaseResult> RunMode(size_t i, int64_t memory_bytes) {
    CaseOptions options = options_;
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
  const bool one_by_one_;
  CaseOptions options_;
  std::atomic<size_t> next_{0};
  ProgressLine progress_;
};

void Explain(const AuditRequest& request) {
  std::ostream& explanation =
      request.report.format == AuditFormat::kJson && request.report.out.empty() ? std::cerr
                                                                                : std::cout;
  for (const RunDescription& run : request.runs) explanation << ExplainStep(run);
  explanation << std::flush;
}

// What this process has to say: the report, if it judges.
absl::StatusOr<int> Audit(const AuditRequest& request, RanksHere& ranks) {
  std::ofstream file;
  if (ranks.leads()) SHARDPROOF_RETURN_IF_ERROR(OpenReport(request.report, file));
  if (ranks.leads() && request.explain) Explain(request);
  // A tenth stays for everything else on the machine.
  const int64_t memory_bytes = ranks.ShareOf(AvailableMemoryBytes() / 10 * 9);
  SHARDPROOF_ASSIGN_OR_RETURN(const AuditReport report,
                              AuditRunner(request, ranks, memory_bytes).Run());
  if (!ranks.leads()) return 0;
  SHARDPROOF_RETURN_IF_ERROR(PrintReport(report, request.report, file));
  const int exit_code = AuditExitCode(report);
  if (exit_code == 2) {
    ReportBadInput(kProgram, absl::UnimplementedError(absl::StrCat(
                                 "every mode was refused: ", report.modes[0].result.refusal)));
  }
  return exit_code;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<LaunchEnvironment> launch = ReadLaunchEnvironment(std::getenv);
  if (!launch.ok()) return ReportBadInput(kProgram, launch.status());
  RanksHere ranks(kProgram, *launch);
  const absl::Status directory = EnterCallersDirectory();
  if (!directory.ok()) return ranks.Fail(directory);
  const absl::StatusOr<AuditRequest> request = ParseAuditRequest(argc, argv, *launch);
  if (!request.ok()) return ranks.Fail(request.status());
  if (!request->help.empty()) {
    if (ranks.leads()) std::cout << request->help;
    return 0;
  }
  const StdoutForReports reports(NeedsGpus(request->engine.engine));
  const absl::Status joined = ranks.Join(request->engine.timeout);
  if (!joined.ok()) return ranks.Fail(joined);
  const absl::StatusOr<int> exit_code = Audit(*request, ranks);
  return exit_code.ok() ? ranks.Leave(*exit_code) : ranks.Fail(exit_code.status());
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
