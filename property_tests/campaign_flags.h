// The flags that `fuzz` and `nightly` share.
#ifndef PROPERTY_TESTS_CAMPAIGN_FLAGS_H_
#define PROPERTY_TESTS_CAMPAIGN_FLAGS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "invariants/run_description/flags.h"
#include "property_tests/campaign.h"

namespace shardproof {

// Every flag as it was given.
struct CampaignFlags {
  std::string duration;
  uint64_t seed = 0;
  std::string engine = "cpu";
  int64_t max_cases = INT64_MAX;
  int64_t jobs = 1;
  std::string out;
  // Not a flag: whether the program has engines for GPUs. It then completes the options of such a
  // campaign (UseGpus in gpu_cases.h).
  bool gpus = false;
};

// duration, seed, engine, max_cases, jobs, out; what `raw` holds are the defaults. `raw` must
// outlive Parse.
void DeclareCampaignFlags(CampaignFlags& raw, Flags& flags);

// After Parse; without --seed a fresh one, and for engines that need GPUs one job. InvalidArgument
// in one line that names the flag, its value and what is accepted.
absl::StatusOr<CampaignOptions> MakeCampaign(const CampaignFlags& raw, const Flags& flags);

// Runs it with a line of progress on stderr; prints the table, and what was found, on stdout. The
// exit code: 0 nothing failed, 1 a case failed, 2 bad input.
int RunCampaignProgram(const std::string& program, const CampaignOptions& options,
                       const std::string& out);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_CAMPAIGN_FLAGS_H_
