// //property_tests:nightly: a campaign from a fresh seed, spread over the shards of a Bazel test.
//
// Every shard prints the seed of its own cases; `fuzz --seed=` with it draws the same ones.
// SHARDPROOF_CASES bounds the number of cases of a shard, --duration its time.
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "absl/strings/numbers.h"
#include "invariants/suite/console.h"
#include "property_tests/campaign_flags.h"
#include "property_tests/generators/rapidcheck_defaults.h"

namespace shardproof {
namespace {

// 0 outside of Bazel.
uint64_t ShardIndex() {
  const char* const text = std::getenv("TEST_SHARD_INDEX");
  uint64_t index = 0;
  return text != nullptr && absl::SimpleAtoi(text, &index) ? index : 0;
}

// So Bazel knows that this program shards itself.
void TouchStatusFile() {
  const char* const path = std::getenv("TEST_SHARD_STATUS_FILE");
  if (path != nullptr) std::ofstream(path).flush();
}

// Shards of one given seed differ. An odd factor keeps different seeds different.
uint64_t SeedOfShard(uint64_t seed, uint64_t shard) { return seed + shard * 0x9e3779b97f4a7c15; }

int Main(int argc, char** argv) {
  TouchStatusFile();
  CampaignFlags raw;
  raw.duration = "10m";
  raw.engine = "all";
  Flags flags("A campaign of random cases from a fresh seed.");
  DeclareCampaignFlags(raw, flags);
  const absl::Status parsed = flags.Parse(argc, argv);
  if (!parsed.ok()) return ReportBadInput("nightly", parsed);
  absl::StatusOr<CampaignOptions> options = MakeCampaign(raw, flags);
  if (!options.ok()) return ReportBadInput("nightly", options.status());
  options->max_cases = CaseBudget().value_or(options->max_cases);
  options->seed = SeedOfShard(options->seed, ShardIndex());
  return RunCampaignProgram("nightly", *options,
                            raw.out.empty() ? UndeclaredOutputsFolder() : raw.out);
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
