// The accounting engine: bytes, counts and order of a run at any scale, without values.
//
// It walks the plan and moves nothing, so a model of any size on any number of ranks costs
// only that plan. The events shown are rank 0's and stand for all ranks: these differ in the
// offsets of their shards, and in zero1_broadcast in which moments they own. State bytes, and
// who holds which element of the optimizer state, are shown for every rank. Never shown:
// values, parameter versions.
#ifndef TRAINER_ENGINES_ACCOUNTING_ENGINE_H_
#define TRAINER_ENGINES_ACCOUNTING_ENGINE_H_

#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "invariants/run_description/run_description.h"
#include "trainer/engines/engine.h"

namespace shardproof {

// Unimplemented as CanPlan. ResourceExhausted when what it would show of the ranks' shards may
// need more than `memory_limit_bytes`: it moves no values, but knows every shard of every
// rank. `run` must be valid and outlive the engine.
absl::StatusOr<std::unique_ptr<Engine>> MakeAccountingEngine(
    const RunDescription& run, int64_t memory_limit_bytes = std::numeric_limits<int64_t>::max());

}  // namespace shardproof

#endif  // TRAINER_ENGINES_ACCOUNTING_ENGINE_H_
