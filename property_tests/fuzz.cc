// //property_tests:fuzz: random cases until one fails, or time or number are reached.
#include <algorithm>
#include <iostream>
#include <thread>

#include "invariants/suite/console.h"
#include "property_tests/campaign_flags.h"
#include "property_tests/gpu_cases.h"

namespace shardproof {
namespace {

int Main(int argc, char** argv) {
  const absl::Status directory = EnterCallersDirectory();
  if (!directory.ok()) return ReportBadInput("fuzz", directory);
  CampaignFlags raw;
  raw.duration = "1m";
  raw.jobs = std::max(1u, std::thread::hardware_concurrency());
  raw.out = ".";
  raw.gpus = true;
  Flags flags(
      "Draws random runs, judges each, and stops at the first that fails, shrunk.\n"
      "Exit 0: none failed; 1: one did; 2: bad input.");
  DeclareCampaignFlags(raw, flags);
  const absl::Status parsed = flags.Parse(argc, argv);
  if (!parsed.ok()) return ReportBadInput("fuzz", parsed);
  if (flags.help_asked()) {
    std::cout << flags.Help();
    return 0;
  }
  absl::StatusOr<CampaignOptions> options = MakeCampaign(raw, flags);
  if (!options.ok()) return ReportBadInput("fuzz", options.status());
  const absl::Status gpus = UseGpus(*options);
  if (!gpus.ok()) return ReportBadInput("fuzz", gpus);
  return RunCampaignProgram("fuzz", *options, raw.out);
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
