// Runs that the tests of placements, plans and engines share.
#ifndef TRAINER_SHARDING_TEST_RUNS_H_
#define TRAINER_SHARDING_TEST_RUNS_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// A model as --model names it in a mode on `ranks` ranks: full_shard prefetches
// backward_pre, zero1_broadcast has owners, micro-batches have 4 samples. A model that cannot
// be imported ends the test program.
RunDescription TestRun(absl::string_view model, Mode mode, int32_t ranks);

// `run` in each of the eight rows of the table of modes, full_shard thrice.
std::vector<RunDescription> InEveryMode(const RunDescription& run);

// `run` in every layout that its mode allows.
std::vector<RunDescription> InEveryLayout(const RunDescription& run);

// With one micro-batch, and with three under each of the ways to synchronize them.
std::vector<RunDescription> WithEveryGradSync(const RunDescription& run);

// Wraps the stages anew. Units are given in the order of their first stages.
void SetUnits(const std::vector<std::vector<int32_t>>& stages_of_units, ModelDescription& model);

void Freeze(const std::vector<int32_t>& tensors, ModelDescription& model);

// Models whose shape is a case of its own: small, and each with what the others lack.
//   probes  tensors smaller than the world; a root unit of two runs whose lower one is frozen,
//           over frozen blocks; a tensor of two stages; a frozen tensor beside trainable ones;
//           a stage and a unit without tensors; nothing trainable at all; a tensor of several
//           units; tensors without elements
//   mlps    biases and ragged widths; a frozen layer that shares its unit with a trainable
//           one; a weight tied over two layers of a unit, and over two units
std::vector<ModelDescription> AwkwardProbes();
std::vector<ModelDescription> AwkwardMlps();

}  // namespace shardproof

#endif  // TRAINER_SHARDING_TEST_RUNS_H_
