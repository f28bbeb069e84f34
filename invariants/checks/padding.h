// padding: every element has exactly one place, and what has no element stays inert.
//
// Rules.
//   Coverage  Moments cover each element of each trainable tensor exactly once over the ranks
//             of a sharding group, parameters and reduced gradients likewise; classes that the
//             mode keeps whole on each rank (run_description.h) cover it once on every rank.
//             Each run of elements lies on the rank that closed_forms names as its owner.
//   Offsets   The segments of one buffer, padding among them, do not overlap and tile it from 0
//             to its end without a hole.
//   Inert     Padding of parameters and moments, which live from the start of the run to its
//             end, still has the bits that it was filled with: the poison of padding, with the
//             buffer's own number (PaddingValue in observation/padding_value.h). Anything else
//             was written or computed by somebody, be it another NaN. Padding of reduced gradients
//             is summed over the ranks like the elements beside it, and arithmetic may keep no
//             payload: there any NaN will do, and no number.
//             No element is a NaN with a poison payload (float_bits.h): such an element was never
//             written, or comes from padding or freed memory.
//
// Evidence. Segments, in at least one step; values for the third rule, which without them has
// nothing to say: if there is padding and no values of it were ever shown, a pass is one of
// ownership and offsets only, and its reason says so; the buffer's size (RankEvents::buffers) for
// the end of the second. Where only exp_avg was shown, it may fill the first half of the optimizer
// state's buffer.
//
// The first two rules are judged when a layout is first shown and when it changes, and not
// again in the steps that repeat it. Empty shards are fine. Coverage is complete in what was
// shown: a class that no rank shows is not missed.
//
// It cannot see padding that took part in a sum and was poisoned again, nor an element that
// holds another element's number: that is numeric_equivalence's.
#ifndef INVARIANTS_CHECKS_PADDING_H_
#define INVARIANTS_CHECKS_PADDING_H_

#include <memory>

#include "invariants/checks/check.h"

namespace shardproof {

// The rules that need memory filled with poison, as violations name them.
inline constexpr char kPaddingStaysFilled[] = "padding stays the NaN that it was filled with";
inline constexpr char kNoElementIsPoison[] = "no element holds the poison of memory that has none";

std::unique_ptr<Check> MakePadding();

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_PADDING_H_
