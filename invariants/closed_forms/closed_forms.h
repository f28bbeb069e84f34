// What each mode must hold, send and keep alive: formulas over a RunDescription.
//
// Nothing here shares code with the trainer's layouts and planners. A check that took its
// expectation from those would compare the code with itself. The rules below are the
// definition; DESIGN.md's table of modes is their summary.
//
// N = ranks of the sharding group, K = micro-batches, R = reducing micro-batches
// (grad_sync every: K; last: 1, the last). P_t = elements of tensor t.
//
// SETS OF TENSORS THAT SHARE A BUFFER
//   units     shard_grad_op, full_shard: the tensors of a unit in order of first use. A tensor
//             that stages of several units use belongs to the unit of its first stage.
//   buckets   replicated, zero1_*, zero2: trainable tensors in reverse registration order;
//             a bucket closes when its bytes reach or pass bucket_cap_bytes. Tensors without
//             elements are in no bucket.
//             Frozen tensors of these modes share one more buffer, whole on every rank.
//
// LAYOUT OF A SET OVER n SHARDS (elements of one shard, equal on all ranks; the padded
// full buffer has n times as many, rank r's shard at offset r * shard)
//   flat          ceil(sum P_t / n): tensors back to back, padding at the end.
//   flat_aligned  as flat, but each tensor starts at a multiple of 16 bytes.
//   rows          sum over t of ceil(d0 / n) * (P_t / d0), d0 = first extent: rank r holds
//                 rows [r*c, min((r+1)*c, d0)) of each tensor, c = ceil(d0 / n), each
//                 tensor's part padded to c rows.
//   owner         whole tensors; largest first (equal sizes: earlier in the set first), each
//                 to the rank with the fewest elements so far (ties: lowest rank); a rank's
//                 tensors lie in the set's order; shards padded to the largest.
//   replicated, and the gradient buckets of zero1_broadcast: n = 1, no padding.
//   zero1_allgather, zero2: buckets over n = N. shard_grad_op, full_shard: units over N.
//   zero1_broadcast: parameters lie in one buffer an owner (rule of `owner` over all
//   trainable tensors in registration order, not padded); moments on the owner only.
//   Gradients and moments of a unit have the unit's layout; the places of frozen tensors in
//   them count as padding. A unit without a trainable tensor that has elements has neither
//   gradient nor moments.
//   A tensor without elements lies nowhere and changes nothing, but that flat_aligned still
//   rounds up to where it would start.
//   In every layout, what one rank owns of a tensor is one range of it, and ranges ascend with
//   the ranks.
//
// STATE AT THE OPTIMIZER BOUNDARY, by rank
//   parameter  replicated, zero1_*, zero2: all. Units: the shard.
//   gradient   replicated, zero1_*: whole. zero2: the shard of each bucket. Units: the shard.
//   optimizer  replicated: whole. zero1_broadcast: owned tensors. zero1_allgather, zero2: the
//              shard of each bucket. Units: the shard. AdamW twice the elements, SGD once
//              (0 when momentum is 0).
//   padding    bytes of the same buffers that belong to no (trainable) tensor.
//   scalar     AdamW: 4 bytes for each trainable tensor with an element of state on the
//              rank. SGD: 0.
//   Clipping keeps no state: norm and coefficient are workspace.
//
// THE STEP. A run is a maximal sequence of consecutive stages of one unit; forward computes
// runs in order, backward in reverse, down to the run of the first stage with a trainable
// tensor that has elements (its whole run). A run needs its own unit and the units that tensors
// of its stages belong to (tied weights): its own first, then the others in ascending order. A
// unit's last forward run is the last one that needs it, its last backward run the lowest one
// that needs it and that backward reaches. In the unit modes, with G = all-gather of a unit's
// parameters (elements of the padded full buffer), c = compute of a run, R = reshard, S =
// reduce-scatter; where a line speaks of several units, in the order in which the run needs them:
//   forward   for each run: G of each unit that it needs, if it has elements and is sharded;
//             then R of the units due after the run before; then c. After the last run, R of
//             those due. full_shard: R of a unit is due after its last forward run if
//             reshard_after_forward. shard_grad_op: never. In both, if backward never needs the
//             unit, R is due after its last forward run. A unit without elements is never
//             gathered or resharded.
//   backward  for each run j, down:
//             G of each unit that j needs, if it is sharded;
//             backward_pre: G of each unit that run j-1 needs, if backward reaches j-1 and the
//             unit is sharded;
//             c; R of each unit whose last backward run is j;
//             backward_post: G for run j-1, as above;
//             S of each unit whose last backward run is j and that has a trainable tensor with
//             elements, in reducing micro-batches.
//   In micro-batches that do not reduce, keep_unsharded_between_micro_batches suppresses R in
//   backward, never in forward; the next forward then finds the unit unsharded and does not
//   gather it.
//   In the bucket modes: c of each run; a bucket is complete after the backward run that
//   writes its last tensor; in reducing micro-batches, after each run's c, complete buckets
//   are reduced in bucket order (all-reduce; zero2: reduce-scatter; elements of the padded
//   bucket), none before its predecessors.
//   clip      with clip_grad_norm, before the first update. zero2 and the unit modes: each rank
//             has the squares of its own shards, so one all-reduce of 1 element (float64,
//             purpose clip_norm, phase optimizer, no unit or bucket). The other modes have whole
//             gradients and send nothing, and so does a step without an update.
//   optimizer one update per set with a trainable tensor that has elements, in set order
//             (zero1_broadcast: one update in all, if there is such a tensor); zero1_allgather,
//             zero2: after each bucket's update, the all-gather of its parameters. zero1_broadcast:
//             after the update, one broadcast per trainable tensor with elements, in registration
//             order, P_t elements, root = owner; with broadcast_bucket_view one per owner with
//             elements, by rank, its elements.
//   Every other collective has dtype float32 here (mixed precision: parameter dtype for gathers and
//   broadcasts, reduce dtype for reductions) and the group {0, 1, N}. A compute item has the
//   unit of its run in every mode; a collective or update has the unit or the bucket of its
//   set; a broadcast has tensor and root, in the bucket view only the root.
//
// LIVE BYTES. An event's live bytes are those after its allocations, before its frees, of the
// roles that are model state. Parameters, moments and scalars live always.
//   - A unit's full parameters live from its G to its R.
//   - A backward c writes to a gradient if a stage of its run has a trainable tensor of it with
//     elements, used in this step or not: usage changes values, never events.
//   - Reduced gradients (whole buckets, bucket shards, unit shards) are freed at the start of
//     the next step. Unit and zero2 shards are allocated by their first S. Buckets of
//     replicated and zero1_* are allocated by the first backward c that writes to them (in
//     the first micro-batch).
//   - Unreduced gradients: a unit's (or zero2 bucket's) full gradient is allocated by the first
//     backward c that writes to it since its last release. With grad_sync last it lives on over
//     the micro-batches until it is reduced. replicated and zero1_* with grad_sync every: from
//     the second micro-batch on, each bucket has a full unreduced gradient too, by the same rule.
//   - A reduction from the second reducing micro-batch on allocates a temporary for its output
//     if it is a reduce-scatter (one shard, role unreduced gradient); the sum into the shard
//     follows at once on the communication stream.
//   - Release of an unreduced gradient, with its temporary: just before each backward c, all
//     reduced ones but the most recently reduced; the rest at the end of the micro-batch's
//     backward. Prefetch none: right after the reduction (and its sum). So the full gradients
//     alive in backward are 2, 2, 1 for backward_pre, backward_post, none, and the full units
//     2, 1, 1.
//
// USAGE (UsageRule) changes no byte, event or collective of a step. A tensor that no rank uses
// in a step has gradient zero and no update in it.
//
// NOT DEFINED YET: bytes under mixed precision, and the step of hybrid sharding (a shard group
// smaller than the world). NoStateRule and NoStepRule say so, and a check whose expectation is
// missing reports not_observed; it never compares with numbers of another configuration.
#ifndef INVARIANTS_CLOSED_FORMS_CLOSED_FORMS_H_
#define INVARIANTS_CLOSED_FORMS_CLOSED_FORMS_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "invariants/closed_forms/layout_forms.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// Bytes of each state class on one rank at the optimizer boundary.
StateBytes ExpectedState(const RunDescription& run, Rank rank);

// Elements of optimizer state for each element that is updated: AdamW 2, SGD 1, or 0 without
// momentum.
int64_t MomentsOf(const OptimizerDescription& optimizer);

// The sums over ranks of parameter, gradient and optimizer bytes, over the logical bytes P;
// DESIGN's factor columns. As there, P is of all parameters for the first and of the
// trainable ones for the other two (0 when there are none).
struct Factors {
  double parameter = 0;
  double gradient = 0;
  double optimizer = 0;
};
Factors ExpectedFactors(const RunDescription& run);

// Collectives of the mode in one step, per rank, from the table's formulas (U, K, R, B, T). A
// clip norm is none of the mode's.
struct ExpectedCounts {
  int64_t all_reduce = 0;
  int64_t all_gather_forward = 0;
  int64_t all_gather_backward = 0;
  int64_t all_gather_optimizer = 0;
  int64_t reduce_scatter = 0;
  int64_t broadcast = 0;
};
ExpectedCounts ExpectedCollectiveCounts(const RunDescription& run);

// One collective, compute or update of a step, in issue order. The fields mean what they
// mean in Event; those that do not apply keep Event's defaults.
struct ExpectedItem {
  EventKind kind = EventKind::kCompute;  // kCollective, kCompute or kOptimizer
  Phase phase = Phase::kForward;
  CollectiveKind collective = CollectiveKind::kBarrier;
  Purpose purpose = Purpose::kNone;
  Dtype dtype = Dtype::kFloat32;
  Group group;
  int32_t root = -1;
  int64_t elements = 0;
  int32_t micro_batch = -1;
  int32_t unit = -1;
  int32_t bucket = -1;
  int32_t tensor = -1;
  int32_t stage = -1;
  int32_t stage_count = 0;
  // Live bytes of model state at this item (see LIVE BYTES), the same on every rank but for
  // moments and scalars, which live always: those two are in ResidentBytes, and not here.
  int64_t live_bytes = 0;
  // Its transient parts; the rest is parameters.
  int64_t unsharded_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t unreduced_bytes = 0;
};

// Every rank issues the same sequence in every step. live_bytes counts parameter, unsharded
// parameter, gradient and unreduced gradient buffers, padding included.
std::vector<ExpectedItem> ExpectedSequence(const RunDescription& run);

// Peak of live bytes of model state on one rank in one step: the largest live_bytes plus
// that rank's moments (padding included) and scalars.
int64_t ExpectedPeakBytes(const RunDescription& run, Rank rank);

// Payload x this = bus bytes: 2(N-1)/N for all-reduce, (N-1)/N for all-gather and
// reduce-scatter, 1 for broadcast; 0 at N = 1. (nccl-tests, PERFORMANCE.md.)
double BusFactor(CollectiveKind kind, int32_t ranks);

// Where element `element` of tensor `tensor` is owned: the rank whose optimizer state holds
// it (replicated: every rank, reported as -1). A frozen tensor has no state: units, the rank
// whose shard holds it; other modes, -1. Hybrid: the rank of the first group.
Rank ExpectedOwner(const RunDescription& run, int32_t tensor, int64_t element);

// Why ExpectedState, or the sequence, is not defined for this run; empty when it is.
absl::string_view NoStateRule(const RunDescription& run);
absl::string_view NoStepRule(const RunDescription& run);

// The same answers with the layouts computed once: for whoever asks for many ranks or
// elements. Construction is linear in tensors and in the parts of tensors on ranks.
class ClosedForms {
 public:
  // `run` was accepted by Validate and outlives this.
  explicit ClosedForms(const RunDescription& run) : run_(run), layouts_(run) {}

  StateBytes State(Rank rank) const;
  // Moments, padding included, and scalars: what lives always beside ExpectedItem::live_bytes.
  int64_t ResidentBytes(Rank rank) const;
  Factors SumOverRanks() const;
  ExpectedCounts CollectiveCounts() const;
  std::vector<ExpectedItem> Sequence() const;
  Rank Owner(int32_t tensor, int64_t element) const {
    return Rank{layouts_.Owner(tensor, element)};
  }

 private:
  int64_t BroadcastCount() const;

  const RunDescription& run_;
  LayoutForms layouts_;
};

}  // namespace shardproof

#endif  // INVARIANTS_CLOSED_FORMS_CLOSED_FORMS_H_
