// The flags that describe a run, shared by the programs that run one.
//
//   RunFlags raw;
//   Flags flags("trains in one mode");
//   DeclareRunFlags({.name = "mode", .help = "one mode row"}, raw, flags);
//   ... flags.Parse(argc, argv) ...
//   absl::StatusOr<std::vector<RunDescription>> runs = MakeRuns(raw, flags);
#ifndef INVARIANTS_SUITE_RUN_FLAGS_H_
#define INVARIANTS_SUITE_RUN_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/launch/launch_environment.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// The flag that names modes: programs differ in how many they take.
struct ModeFlag {
  std::string name;  // "modes"
  std::string default_text = {};
  std::string help;
};

// Every flag as it was given, before it means anything.
struct RunFlags {
  ModeFlag mode_flag;
  std::string modes;
  std::string model;
  std::string run;
  std::string layout = "flat";
  std::string grad_sync = "every";
  std::string optimizer = "adamw";
  double bucket_cap_mb = 64;
  double clip_grad_norm = 0;
  int64_t world_size = 4;
  DataDescription data;
};

// model, world_size, the mode flag, layout, steps, micro_batch_size, num_micro_batches,
// grad_sync, bucket_cap_mb, optimizer, clip_grad_norm, seed and run. `raw` must outlive Parse.
void DeclareRunFlags(const ModeFlag& mode_flag, RunFlags& raw, Flags& flags);

// After Parse: the one run of --run, or one run a mode row, each accepted by Validate.
// Where a launcher has started a process a rank, there are as many ranks as processes: world_size
// need not be given, and may not differ.
// InvalidArgument or NotFound in one line that names the flag, its value and what is accepted.
absl::StatusOr<std::vector<RunDescription>> MakeRuns(const RunFlags& raw, const Flags& flags,
                                                     const LaunchEnvironment& launch = {});

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_RUN_FLAGS_H_
