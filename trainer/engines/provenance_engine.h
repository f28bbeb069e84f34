// The provenance engine: executes the plans of all ranks on origins instead of numbers.
//
// A parameter is (tensor, element, updates so far), a gradient the multiset of the (step, rank,
// micro-batch, stage) that were added, each with its scale, and padding stays padding
// (invariants/observation/origin.h). So a missing, double or foreign contribution, a stale
// version, a wrong offset or padding that leaks is a fact with a name, whatever the numbers would
// have been, for any model: layers are never computed.
//
// Ranks execute in issue order and meet in collectives by the order of each group's calls: one
// schedule that the plan allows. Whether its waits allow others is the rule of `ordering`. A
// collective reads and writes as many elements as its call says, from where its ranges begin.
#ifndef TRAINER_ENGINES_PROVENANCE_ENGINE_H_
#define TRAINER_ENGINES_PROVENANCE_ENGINE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "invariants/run_description/run_description.h"
#include "trainer/engines/engine.h"
#include "trainer/engines/engine_parts.h"

namespace shardproof {

// Observations have origins of every rank, events without parameter versions, and states without
// values. `run` outlives the engine, and Validate has accepted it; parts.decorate is not called.
//
// Unimplemented: what CanPlan refuses. InvalidArgument: a plan or placement outside its bounds.
// ResourceExhausted: it may need more than `memory_limit_bytes`.
// Step() gives InvalidArgument for such a plan of a later step, FailedPrecondition for collectives
// that disagree between ranks, and DeadlineExceeded for ranks that can never go on; all name the
// ranks.
absl::StatusOr<std::unique_ptr<Engine>> MakeProvenanceEngine(const RunDescription& run,
                                                             EngineParts parts,
                                                             int64_t memory_limit_bytes);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_PROVENANCE_ENGINE_H_
