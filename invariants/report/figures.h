// What one step's Observation amounts to, as the figures of tables and JSON.
//
// Only sums and counts of what was shown; no expectation and no verdict.
#ifndef INVARIANTS_REPORT_FIGURES_H_
#define INVARIANTS_REPORT_FIGURES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

struct CollectiveFigures {
  int64_t count = 0;
  int64_t payload_bytes = 0;  // of the full padded buffers
  int64_t bus_bytes = 0;      // payload x bus factor, rounded down once
};

struct OtherCollective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Purpose purpose = Purpose::kNone;
  int64_t count = 0;
  int64_t payload_bytes = 0;
};

struct RankFigures {
  int32_t rank = 0;
  StateBytes bytes;
  std::optional<int64_t> peak_bytes;  // of model state, in this step; unset: not observed
};

// Of rank 0 where a figure is of one rank.
struct StepFigures {
  bool states_observed = false;
  bool events_observed = false;
  // Bytes of all ranks over the logical bytes of the parameters; gradient and optimizer
  // bytes over those of the trainable ones.
  double parameter_factor = 0;
  double gradient_factor = 0;
  double optimizer_factor = 0;
  CollectiveFigures all_reduce;
  CollectiveFigures all_gather_forward;
  CollectiveFigures all_gather_backward;
  CollectiveFigures all_gather_optimizer;
  CollectiveFigures reduce_scatter;
  CollectiveFigures broadcast;
  std::vector<OtherCollective> others;
  std::vector<RankFigures> ranks;
  int64_t activation_peak_bytes = 0;  // inputs, activations and their gradients
  double loss = 0;                    // mean over ranks
  bool loss_observed = false;
  std::vector<DeviceWitness> devices;  // as observed; empty: no GPUs, or nobody watched
};

StepFigures SummarizeStep(const RunDescription& run, const StepObservation& observed);

}  // namespace shardproof

#endif  // INVARIANTS_REPORT_FIGURES_H_
