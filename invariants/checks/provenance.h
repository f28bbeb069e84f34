// provenance: every value came from where it should.
//
// Rules, by element. An update of a tensor happens in the steps in which a rank uses it.
//   Parameters  What computation reads as an element of a tensor is that element, after all
//               updates of the steps before. So is what the optimizer boundary keeps, after this
//               step's too.
//   Gradients   What an update reads is the sum of the contributions of every rank, micro-batch
//               and stage that use the tensor in this step, each once, each scaled by 1/(N*K) in
//               all (as a float32), and multiplied by the clip coefficient once if the run clips,
//               else never. The boundary keeps the same.
//   Updates     An update is of the tensor that it names, used in this step, once, with that
//               element's own moments, its group's hyper-parameters and (AdamW) its step count.
//   Norm        The clip coefficient is that of a norm which covers every trainable element once,
//               before clipping.
//   Padding     stays padding: nothing is added to it, and it is added to nothing.
//
// Evidence. StepObservation::origins of every rank in every step, which only an engine that
// computes with origins shows; else the verdict is not_observed. Expectations come from the
// RunDescription alone. There is no tolerance, and no fault that equal data could hide.
//
// It does not ask what a layer computed, when something ran, or how much memory it took.
#ifndef INVARIANTS_CHECKS_PROVENANCE_H_
#define INVARIANTS_CHECKS_PROVENANCE_H_

#include <memory>

#include "invariants/checks/check.h"

namespace shardproof {

std::unique_ptr<Check> MakeProvenance();

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_PROVENANCE_H_
