// issue_order: collectives, computes and updates are issued in the order of the mode and its
// prefetch.
//
// Rule. On every rank, the events that are collectives of the mode, a clip norm, computes or
// updates are ExpectedSequence, item by item: kind, phase, micro-batch, unit (bucket, tensor,
// root), stages. Events of other kinds, such as the local part of a norm, and collectives of other
// purposes may stand between them.
//
// Only the order of issue counts, never wall time: an all-gather issued before the compute it
// should hide behind is right however long it takes. Whether waits then keep the order of
// execution is `ordering`.
//
// A divergence is reported with both neighbours ("expected all-gather of layers.5 after ... and
// before ...; found ..."). The check then looks for the nearest place where order and sequence
// meet again, so that one item too late is two divergences and not a flood; it reports the
// first kMaxDivergences of a rank and step. Where the order is that of another prefetch, the
// likely cause says so.
//
// Evidence. StepObservation::events of every rank in every step. Ranks that were not shown
// leave the check not_observed.
//
// It cannot see sizes, dtypes or groups (collective_ledger).
#ifndef INVARIANTS_CHECKS_ISSUE_ORDER_H_
#define INVARIANTS_CHECKS_ISSUE_ORDER_H_

#include <memory>

#include "invariants/checks/check.h"

namespace shardproof {

inline constexpr int kMaxDivergences = 4;

std::unique_ptr<Check> MakeIssueOrder();

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_ISSUE_ORDER_H_
