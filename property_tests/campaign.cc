#include "property_tests/campaign.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

// The first engine on which the case fails; a verdict that passes if there is none.
EngineVerdict Judge(const CampaignOptions& options, const RunDescription& run) {
  EngineVerdict verdict;
  for (const EngineKind engine : options.engines) {
    verdict = options.judge ? options.judge(run, engine) : JudgeCase(run, {.engine = engine});
    if (!verdict.passes) break;
  }
  return verdict;
}

// Threads take the next case until the first failing one, the number or the time is reached.
class Campaign {
 public:
  explicit Campaign(const CampaignOptions& options)
      : options_(options),
        start_(absl::Now()),
        end_(start_ + options.duration),
        workers_(static_cast<size_t>(options.jobs)) {}

  absl::StatusOr<CampaignResult> Run() {
    std::vector<std::thread> threads;
    for (Worker& worker : workers_) threads.emplace_back([this, &worker] { Work(worker); });
    ShowProgress();
    for (std::thread& thread : threads) thread.join();
    CampaignResult result;
    const CampaignProgress progress = Progress();
    result.cases = progress.cases;
    result.seconds = progress.seconds;
    result.coverage = progress.coverage;
    result.jobs = options_.jobs;
    SHARDPROOF_RETURN_IF_ERROR(broken_);
    if (first_failing_ < INT64_MAX) SHARDPROOF_RETURN_IF_ERROR(Shrink(result));
    return result;
  }

 private:
  struct Worker {
    std::mutex mutex;
    int64_t cases = 0;
    Coverage coverage;
  };

  void Work(Worker& worker) {
    const rc::Gen<CaseSpec> cases = AnyCase(options_.limits);
    while (absl::Now() < end_) {
      const int64_t index = next_++;
      // Cases below one that fails are still judged: the lowest is the campaign's.
      if (index >= options_.max_cases || index > first_failing_) break;
      JudgeOne(CampaignCase(cases, options_.seed, index).value(), index, worker);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    ++ended_;
    one_ended_.notify_all();
  }

  void JudgeOne(const CaseSpec& spec, int64_t index, Worker& worker) {
    const absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
    const bool fails = !run.ok() || !Judge(options_, *run).passes;
    if (run.ok()) {
      const std::lock_guard<std::mutex> lock(worker.mutex);
      ++worker.cases;
      worker.coverage.Add(AxisValues(*run));
    }
    if (!fails) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (index >= first_failing_) return;
    first_failing_ = index;
    broken_ = run.status();
  }

  void ShowProgress() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (ended_ < options_.jobs) {
      one_ended_.wait_for(lock, std::chrono::seconds(1));
      if (!options_.on_progress || ended_ == options_.jobs) continue;
      lock.unlock();
      options_.on_progress(Progress());
      lock.lock();
    }
  }

  CampaignProgress Progress() {
    CampaignProgress progress;
    for (Worker& worker : workers_) {
      const std::lock_guard<std::mutex> lock(worker.mutex);
      progress.cases += worker.cases;
      progress.coverage.Add(worker.coverage);
    }
    progress.seconds = absl::ToDoubleSeconds(absl::Now() - start_);
    return progress;
  }

  absl::Status Shrink(CampaignResult& result) {
    const int64_t index = first_failing_;
    const rc::Shrinkable<CaseSpec> drawn =
        CampaignCase(AnyCase(options_.limits), options_.seed, index);
    SHARDPROOF_ASSIGN_OR_RETURN(const RunDescription original,
                                MakeCase(drawn.value(), ImportModel));
    const std::string cause = Judge(options_, original).cause;
    const auto fails = [this, &cause](const CaseSpec& spec) {
      const absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
      return run.ok() && Judge(options_, *run).cause == cause;
    };
    const ShrunkCase shrunk = ShrinkCase(drawn, fails, options_.shrink);
    FoundCase found;
    SHARDPROOF_ASSIGN_OR_RETURN(found.run, MakeCase(shrunk.spec, ImportModel));
    found.verdict = Judge(options_, found.run);
    found.found_by = absl::StrCat(options_.name, " --seed=", options_.seed, ", case ", index);
    result.found = std::move(found);
    result.found_index = index;
    result.shrink_tries = shrunk.tries;
    result.shrunk_to_the_end = shrunk.complete;
    return absl::OkStatus();
  }

  const CampaignOptions& options_;
  const absl::Time start_;
  const absl::Time end_;
  std::vector<Worker> workers_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> first_failing_{INT64_MAX};
  std::mutex mutex_;  // of what follows, and of changes of first_failing_
  std::condition_variable one_ended_;
  int32_t ended_ = 0;
  absl::Status broken_;  // why the failing case could not be made
};

double PerSecond(int64_t cases, double seconds) { return seconds > 0 ? cases / seconds : 0; }

// What is left when almost everything met; a list of hundreds says less than their number.
std::string MissingText(const Coverage& coverage) {
  constexpr size_t kMostShown = 12;
  const std::vector<std::string> missing = coverage.PairsMissing();
  if (missing.empty() || missing.size() > kMostShown) return "";
  return absl::StrCat("not met   ", absl::StrJoin(missing, "\n          "), "\n");
}

std::string CoverageText(const Coverage& coverage) {
  return absl::StrFormat("%d of %d values, %d of %d pairs", coverage.ValuesSeen(),
                         coverage.ValuesPossible(), coverage.PairsSeen(), coverage.PairsPossible());
}

}  // namespace

rc::Shrinkable<CaseSpec> CampaignCase(const rc::Gen<CaseSpec>& cases, uint64_t seed,
                                      int64_t index) {
  // Sizes grow and begin again, as in RapidCheck.
  const int size = static_cast<int>(index % (rc::kNominalSize + 1));
  return cases(rc::Random(rc::Random::Key{seed, static_cast<uint64_t>(index), 0, 0}), size);
}

absl::StatusOr<CampaignResult> RunCampaign(const CampaignOptions& options) {
  return Campaign(options).Run();
}

std::string ProgressText(const CampaignProgress& progress) {
  return absl::StrFormat("%d cases, %.0f/s, %s", progress.cases,
                         PerSecond(progress.cases, progress.seconds),
                         CoverageText(progress.coverage));
}

std::string CampaignTable(const CampaignResult& result) {
  const double per_second = PerSecond(result.cases, result.seconds);
  return absl::StrFormat(
      "cases     %d in %.1f s\n"
      "speed     %.1f cases/s, %.1f per job of %d\n"
      "coverage  %s\n%s%s",
      result.cases, result.seconds, per_second, per_second / result.jobs, result.jobs,
      CoverageText(result.coverage), MissingText(result.coverage), result.coverage.Table());
}

}  // namespace shardproof
