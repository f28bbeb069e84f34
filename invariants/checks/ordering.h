// ordering: whatever the schedule, nobody uses memory that somebody else is changing.
//
// Rules, per rank:
//   - Any two accesses of a buffer whose ranges overlap, one of which writes, are ordered; an
//     allocation or release counts as a write of the whole buffer.
//   - An allocation is ordered after every release issued before it (in the same memory tier):
//     the allocator may hand out the same memory, so that freed memory is reused only after an
//     ordering wait.
//   - A wait names an earlier event of its rank.
//
// What orders. An event runs after the earlier events of its stream and after those it waits
// for. A collective ends only after the matching one (the n-th of the same group in issue
// order) has started on every member. All streams of a rank join at the end of a step.
// Events are ordered if a path of these exists, found by vector clocks over ranks and
// streams; no lucky schedule can hide a missing wait. Ranks shown as one group are one here,
// which changes no path.
//
// Where ranks issue collectives in different orders, or one is missing, that is one violation,
// and from there on collectives order nothing in this step.
//
// Evidence. Events with accesses of every rank in every step; without them not_observed, and
// so it is when one event of computation, communication or local arithmetic reads and writes
// nothing. Exempt are barriers, collectives of no elements, computation of stages whose parameters
// have no elements, and updates: a rank may own nothing.
//
// It does not know whether a wait is needed for a buffer that was not listed, nor times:
// order that holds by chance is no order here.
#ifndef INVARIANTS_CHECKS_ORDERING_H_
#define INVARIANTS_CHECKS_ORDERING_H_

#include <memory>

#include "invariants/checks/check.h"

namespace shardproof {

std::unique_ptr<Check> MakeOrdering();

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_ORDERING_H_
