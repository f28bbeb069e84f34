// unshard_lifecycle: parameters are whole exactly while the mode says so, and current.
//
// Rules, per rank and unit, for shard_grad_op and full_shard:
//   - A unit is sharded, unsharded by a collective with purpose unshard_parameters that
//     allocates its full parameters, and sharded again by a reshard that frees them. It is not
//     gathered while unsharded, not resharded while sharded.
//   - Stages compute only while their unit, and each unit that a tensor of theirs belongs to (a
//     tied one), is unsharded and its gather has completed. Tensors without elements need none.
//   - Between the last forward and the first backward that need a unit in a micro-batch, full_shard
//     reshards it if reshard_after_forward; otherwise, and in shard_grad_op, nobody does.
//   - After the step every unit is sharded and no full parameters are alive.
// In the other modes nothing is unsharded or resharded.
// In every mode:
//   - Buffers are read and written while they are alive, and read only after something was
//     written to them since their allocation (inputs apart: they are filled from outside).
//     A live buffer is not allocated, a dead one not freed.
//   - Computation reads parameters with as many updates as there were: version = step, one more
//     after an update in the same step, whether or not the step used the tensor (UsageRule). A
//     lower version is a gather, broadcast or copy that never happened. Collectives that send
//     parameters (unshard, gather, the root's broadcast) read them under the same rule. Parameters
//     that no update changes are not judged.
//
// Evidence. Events of every rank in every step, the accesses of computation that has
// parameters, and the versions that it reads: a step or rank without events, such a compute
// event without any access, or one that reads updated parameters of version -1 makes the
// verdict not_observed. Other events without accesses are judged by the first list alone, and
// the version -1 of a collective's read is not judged: what it brought shows where it is used.
// In a model with frozen tensors, the version of a buffer that is of no unit and no bucket is
// judged only if the segments of the state show that it holds a trainable tensor.
//
// It follows the issue order: whether a wait makes that order true is the rule of `ordering`.
// It does not know which part of a buffer was written, nor whether the numbers are right.
#ifndef INVARIANTS_CHECKS_UNSHARD_LIFECYCLE_H_
#define INVARIANTS_CHECKS_UNSHARD_LIFECYCLE_H_

#include <memory>

#include "invariants/checks/check.h"

namespace shardproof {

// The rules that need versions of parameters, as violations name them.
inline constexpr char kComputationReadsUpdated[] =
    "computation reads parameters with every update so far";
inline constexpr char kCollectivesSendUpdated[] =
    "collectives send parameters with every update so far";

std::unique_ptr<Check> MakeUnshardLifecycle();

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_UNSHARD_LIFECYCLE_H_
