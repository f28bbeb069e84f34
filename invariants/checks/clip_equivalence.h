// The part of numeric_equivalence that is about clipping: what every rank clipped with.
// Private to the checks.
//
// Rules. Norm and coefficient of each rank are within kClipTolerance of those of replicated
// training, relative, and have the same bits on all ranks: ranks that clip differently train
// different models. A run without clip_grad_norm multiplies by 1. Without clips shown, a run that
// clips gets a note; with those of some ranks only, the verdict is not_observed.
//
// Any order. A norm of gradients that are each off by at most e is off by at most the norm of all
// e: that, with the e of any_order.h and before clipping, is added to the norm's bound, and what
// such a norm makes of the coefficient to the coefficient's. Where contributions cancel this is far
// more than kClipTolerance. Without the magnitudes that e needs, a norm or coefficient beyond
// kClipTolerance makes the verdict not_observed.
#ifndef INVARIANTS_CHECKS_CLIP_EQUIVALENCE_H_
#define INVARIANTS_CHECKS_CLIP_EQUIVALENCE_H_

#include "invariants/checks/check.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

inline constexpr double kClipTolerance = 1e-6;

// How far, relative, the coefficient of rank 0 is from the one that the reference clipped with, and
// at most what JudgeClips accepts; 0 where nothing was shown. The gradients of a right trainer
// differ by as much.
double CoefficientError(const RunDescription& run, const StepObservation& observed,
                        const ReferenceStep& reference);

void JudgeClips(const RunDescription& run, const StepObservation& observed,
                const ReferenceStep& reference, Findings& findings);

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_CLIP_EQUIVALENCE_H_
