// The flags that say what executes a run, shared by the programs that run one.
//
//   EngineFlags raw;
//   DeclareEngineFlags(raw, flags);
//   ... flags.Parse(argc, argv) ...
//   absl::StatusOr<EngineRequest> engine = MakeEngineRequest(raw, launch);
#ifndef INVARIANTS_SUITE_ENGINE_FLAGS_H_
#define INVARIANTS_SUITE_ENGINE_FLAGS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/launch/launch_environment.h"
#include "invariants/run_description/flags.h"
#include "invariants/suite/run_case.h"

namespace shardproof {

// Every flag as it was given.
struct EngineFlags {
  std::string engine = "cpu";
  bool tf32 = false;
  int64_t timeout_s = 120;
};

struct EngineRequest {
  EngineKind engine = EngineKind::kCpu;
  bool tf32 = false;
  absl::Duration timeout = absl::Seconds(120);                // of every wait of a rank for others
  absl::Duration gpu_collective_timeout = absl::Seconds(90);  // CollectiveTimeout
};

// How long a collective of GPUs may take where ranks wait `timeout` for each other: three quarters
// of it. Who waits for a rank in a collective can name both; who has its own collectives behind it,
// rank 0 say, knows only that the rank is silent. So the collective ends first.
absl::Duration CollectiveTimeout(absl::Duration timeout);

// engine, tf32 and timeout_s. `raw` must outlive Parse.
void DeclareEngineFlags(EngineFlags& raw, Flags& flags);

// After Parse. InvalidArgument in one line: an unknown engine, one that cannot run in the processes
// that were launched, and --tf32 for an engine without GPUs.
absl::StatusOr<EngineRequest> MakeEngineRequest(const EngineFlags& raw,
                                                const LaunchEnvironment& launch);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_ENGINE_FLAGS_H_
