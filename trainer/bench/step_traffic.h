// What one step of one rank must compute and move, read off its plan: pure functions.
//
// Two figures bound a step from different sides, and are kept apart:
//   floor_ms        the time of the step's matrix products alone, measured
//   unavoidable_ms  the time of its other bytes at measured bandwidths, from StepTraffic
// A step that overlaps everything takes the larger, one that overlaps nothing takes their sum.
//
// Counted. Every pass over memory that the plan asks for beside matrix products, each reading its
// inputs and writing its results once, 4 bytes a float. Updates count logical elements, collectives
// and scales padded buffers.
// Not counted: the operands of matrix products (floor_ms has them); reads and writes of device
// memory by collectives of several ranks, which go along with the bus transfer; scalars; the
// launches themselves; poison. So it is no bound from below for a trainer that fuses such passes
// into others, nor one that keeps a buffer in cache between two of them.
#ifndef TRAINER_BENCH_STEP_TRAFFIC_H_
#define TRAINER_BENCH_STEP_TRAFFIC_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "invariants/run_description/run_description.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

enum class GemmKind : uint8_t {
  kForward,         // y [m, n] = x [m, k] weight^T:        m = batch, n = out, k = in
  kInputGradient,   // x' [m, n] = y' [m, k] weight:        m = batch, n = in, k = out
  kWeightGradient,  // weight' [m, n] = y'^T x:             m = out, n = in, k = batch
};

struct Gemm {
  GemmKind kind = GemmKind::kForward;
  int32_t stage = -1;
  int64_t m = 0, n = 0, k = 0;
  bool operator==(const Gemm&) const = default;
};

// The products of the plan's forward and backward operations, in issue order. Those nobody needs do
// not exist: the input gradient of the first stage that is trained, and of those below it, and
// weight gradients of frozen layers. None for models without Linear layers.
std::vector<Gemm> StepGemms(const RunDescription& run, const Placement& placement,
                            const StepPlan& plan);

// Floating-point operations, 2 m n k each.
double Flops(const std::vector<Gemm>& gemms);

// Bytes of one rank's step, by what moves them.
struct StepTraffic {
  int64_t input = 0;        // samples of boundary 0 and targets, written once each
  int64_t bias = 0;         // y += bias: 8 an element; bias gradients: read y', 4 an element
  int64_t relu = 0;         // forward 8 an element of y, backward 12
  int64_t loss = 0;         // reads output and target, writes the derivative: 12 an element
  int64_t accumulate = 0;   // += of gradients: 12 an element
  int64_t scale = 0;        // 8 an element
  int64_t norm = 0;         // clipping reads each gradient once: 4 an element
  int64_t local_copy = 0;   // copies, and collectives of one rank that are copies: 8 an element
  int64_t optimizer = 0;    // AdamW 28 an element (reads g p m v, writes p m v), SGD with momentum
                            // 20 (g p m, p m), without 12 (g p, p)
  int64_t bus = 0;          // of its collectives, by collectives/traffic_model.h
  int64_t device() const {  // all but `bus`
    return input + bias + relu + loss + accumulate + scale + norm + local_copy + optimizer;
  }
};

StepTraffic TrafficOf(const RunDescription& run, const Placement& placement, const StepPlan& plan);

// A collective whose bandwidth stands for the plan's: of all (kind, dtype, elements) the one with
// the most bus bytes in sum, the first issued of equals. None where no collective has any.
struct TypicalCollective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  int64_t elements = 0;  // of the full padded buffer
  Group group;
  bool operator==(const TypicalCollective&) const = default;
};
std::optional<TypicalCollective> TypicalOf(const StepPlan& plan);

// The plan's collectives that are kernels of NCCL, one each: those of several ranks and of any
// elements (collectives/nccl/nccl_world.h).
int64_t CollectiveKernels(const StepPlan& plan);

// GB/s are 1e9 bytes a second, above 0; a bandwidth is not used where its bytes are 0.
double UnavoidableMs(const StepTraffic& traffic, double copy_gb_per_s, double bus_gb_per_s);

}  // namespace shardproof

#endif  // TRAINER_BENCH_STEP_TRAFFIC_H_
