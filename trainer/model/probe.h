// The probe model: parameters of any shapes, no layers, gradients that are small integers.
//
// A contribution to the gradient of a tensor's element is an integer in [-8, 8], a hash of
// (seed, step, rank, micro-batch, stage, tensor, element). Up to 2^12 contributions therefore
// add up exactly in float32, in any order (8 * 2^12 < 2^24), and a trainer's sums must equal
// the oracle's bit for bit, whatever the shapes, the sharding or the learning rate. Ranks,
// micro-batches and steps have different gradients, so that leaving out, repeating or
// swapping one shows. A tensor that two stages use gets a contribution from each; one that a
// UsageRule leaves out gets zeros.
//
// Every width is 0: LoadInput and Forward do nothing, Loss is 0.
#ifndef TRAINER_MODEL_PROBE_H_
#define TRAINER_MODEL_PROBE_H_

#include <cstdint>
#include <memory>

#include "invariants/run_description/run_description.h"
#include "trainer/model/model_compute.h"

namespace shardproof {

// `run` must outlive the result.
std::unique_ptr<ModelCompute> MakeProbe(const RunDescription& run);

// The contribution of one stage's use of `tensor`, elements [range). Writes range.count
// floats; the bits do not depend on the cut.
void FillProbeGradient(const RunDescription& run, const MicroBatch& micro_batch, int32_t stage,
                       int32_t tensor, ElementRange range, float* values);

// The key of the stream of small integers (data.h) that those are, where the tensor is used.
uint64_t ProbeGradientKey(const RunDescription& run, const MicroBatch& micro_batch, int32_t stage,
                          int32_t tensor);

}  // namespace shardproof

#endif  // TRAINER_MODEL_PROBE_H_
