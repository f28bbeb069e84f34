#include "trainer/bench/bench_flags.h"

#include "absl/strings/str_cat.h"

namespace shardproof {

void DeclareBenchFlags(BenchFlags& raw, Flags& flags) {
  flags.Bool("bench", &raw.bench,
             "time steps instead of showing them, of each mode row that --mode names; needs "
             "--engine=cuda or cuda_shared; prints JSON, and a table on stderr");
  flags.Int("bench_steps", &raw.bench_steps, 2, 1000000, "timed steps of --bench");
  flags.Int("warmup_steps", &raw.warmup_steps, 1, 1000000, "steps before them");
}

absl::Status CheckBenchFlags(const BenchFlags& raw, EngineKind engine, const Flags& flags) {
  if (!raw.bench) {
    for (const char* flag : {"bench_steps", "warmup_steps"}) {
      if (!flags.given(flag)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " without --bench; leave it out, or add --bench"));
    }
    return absl::OkStatus();
  }
  if (!NeedsGpus(engine)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--bench with --engine=", Name(engine), "; accepted is cuda or cuda_shared"));
  }
  if (flags.given("steps")) {
    return absl::InvalidArgumentError(
        "--bench with --steps; accepted is --bench_steps, and --warmup_steps for those before");
  }
  if (flags.given("observe")) {
    return absl::InvalidArgumentError(
        "--bench with --observe; steps that are timed are not observed, leave one of them out");
  }
  return absl::OkStatus();
}

}  // namespace shardproof
