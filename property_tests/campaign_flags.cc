#include "property_tests/campaign_flags.h"

#include <iostream>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/message_text.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/console.h"

namespace shardproof {
namespace {

absl::StatusOr<absl::Duration> ParseTime(absl::string_view text) {
  absl::Duration duration;
  if (absl::ParseDuration(std::string(text), &duration) && duration > absl::ZeroDuration()) {
    return duration;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--duration=", Shown(text), " is refused; accepted: a time such as 30s or 10m"));
}

// 63 bits, so that readers with signed numbers take it too.
uint64_t FreshSeed() {
  std::random_device device;
  return std::uniform_int_distribution<uint64_t>(0, INT64_MAX)(device);
}

}  // namespace

void DeclareCampaignFlags(CampaignFlags& raw, Flags& flags) {
  flags.String("duration", &raw.duration, "no case begins later, such as 30s or 10m");
  flags.Unsigned("seed", &raw.seed, "of the cases");
  flags.ShowDefault("seed", "fresh");
  flags.String("engine", &raw.engine,
               raw.gpus ? "cpu, provenance, accounting, all (these three), cuda (a GPU a rank) or "
                          "cuda_shared (all ranks on one GPU)"
                        : "cpu, provenance, accounting or all");
  flags.Int("max_cases", &raw.max_cases, 1, INT64_MAX, "stop after this many cases");
  flags.ShowDefault("max_cases", "unlimited");
  flags.Int(
      "jobs", &raw.jobs, 1, 1024,
      raw.gpus ? "threads; engines on GPUs have one, since cases would share a world" : "threads");
  flags.String("out", &raw.out, "folder for the replay file of a failing case");
}

absl::StatusOr<CampaignOptions> MakeCampaign(const CampaignFlags& raw, const Flags& flags) {
  CampaignOptions options;
  // A number of cases is a bound too; the time is one only where somebody asked for it.
  if (!flags.given("max_cases") || flags.given("duration")) {
    SHARDPROOF_ASSIGN_OR_RETURN(options.duration, ParseTime(raw.duration));
  }
  options.seed = flags.given("seed") ? raw.seed : FreshSeed();
  SHARDPROOF_ASSIGN_OR_RETURN(options.engines, ParseEngines(raw.engine, raw.gpus));
  options.max_cases = raw.max_cases;
  options.jobs = static_cast<int32_t>(raw.jobs);
  if (!NeedsGpus(options.engines[0])) return options;
  if (flags.given("jobs") && raw.jobs > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--jobs=", raw.jobs, " with --engine=", raw.engine,
                     ": cases on GPUs run one after the other; accepted is 1"));
  }
  options.jobs = 1;
  return options;
}

int RunCampaignProgram(const std::string& program, const CampaignOptions& options,
                       const std::string& out) {
  CampaignOptions shown = options;
  shown.name = program;
  std::cout << program << " --seed=" << options.seed << std::endl;
  absl::StatusOr<CampaignResult> result = absl::UnknownError("not run");
  {
    ProgressLine line;
    shown.on_progress = [&](const CampaignProgress& progress) {
      line.Show(absl::StrCat(program, ": ", ProgressText(progress)));
    };
    result = RunCampaign(shown);
  }
  if (!result.ok()) return ReportBadInput(program, result.status());
  if (result->found.has_value()) {
    std::cout << ReportFoundCase(*result->found, out) << "shrunk in " << result->shrink_tries
              << " tries" << (result->shrunk_to_the_end ? "" : ", the limit; smaller may fail too")
              << "\n";
  }
  std::cout << CampaignTable(*result) << std::flush;
  return result->found.has_value() ? 1 : 0;
}

}  // namespace shardproof
