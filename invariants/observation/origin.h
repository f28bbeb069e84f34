// Origins: where values came from, in place of the values.
//
// An engine that computes with origins shows, for each read that matters, which element of
// which tensor was really there, after how many updates, and of which ranks and micro-batches a
// gradient is the sum. Numbers that agree by chance cannot hide a fault from it, and rounding
// cannot raise one.
//
// Runs of elements share one origin, whose element counts up along the run. Sums and mixtures are
// shared through the tables of StepOrigins and named by index.
#ifndef INVARIANTS_OBSERVATION_ORIGIN_H_
#define INVARIANTS_OBSERVATION_ORIGIN_H_

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

enum class OriginKind : uint8_t {
  kPadding,       // filled when the run began; `rank` and `buffer` say where
  kNeverWritten,  // nothing was written there since the allocation; the same
  kFreed,         // not allocated, or freed since; the same
  kParameter,     // `element` of `tensor` after `version` updates
  kExpAvg,        // its first moment, or momentum
  kExpAvgSq,      // its second moment
  kGradient,      // of `element` of `tensor`: the sum of the terms `terms`
  kNorm,          // a sum of squares; `terms` say of which ranks
  kCoefficient,   // the clip coefficient of such a norm
  kMixed,         // what no training step computes: `mixture` says of what
};

struct Origin {
  OriginKind kind = OriginKind::kNeverWritten;
  int32_t tensor = -1;
  int64_t element = 0;  // of the run's first element
  int32_t version = 0;
  int32_t terms = -1;    // into StepOrigins::term_sets
  int32_t mixture = -1;  // into StepOrigins::mixtures
  int32_t rank = -1;
  int32_t buffer = -1;
  auto operator<=>(const Origin&) const = default;
};

// Memory that holds nobody's value. Sums of it are harmless as long as nobody reads them.
inline bool IsInert(OriginKind kind) {
  return kind == OriginKind::kPadding || kind == OriginKind::kNeverWritten ||
         kind == OriginKind::kFreed;
}
// Whether `element` means something, and counts up along a run.
inline bool HasElement(OriginKind kind) {
  return kind == OriginKind::kParameter || kind == OriginKind::kExpAvg ||
         kind == OriginKind::kExpAvgSq || kind == OriginKind::kGradient;
}
// The origin `elements` further on in a run.
inline Origin Advanced(Origin origin, int64_t elements) {
  if (HasElement(origin.kind)) origin.element += elements;
  return origin;
}

struct OriginRun {
  int64_t count = 0;
  Origin origin;
  auto operator<=>(const OriginRun&) const = default;
};

// What one stage of one rank's micro-batch contributed to a gradient; or one rank's sum of
// squares, micro-batch and stage -1 then.
struct OriginTerm {
  int64_t step = 0;
  int32_t rank = -1;
  int32_t micro_batch = -1;
  int32_t stage = -1;
  int32_t scalings = 0;  // by how many factors it was multiplied
  double scale = 1;      // their product
  int32_t clips = 0;     // how often it was multiplied by a clip coefficient
  int32_t count = 1;     // how often it is in the sum
  auto operator<=>(const OriginTerm&) const = default;
};

enum class MixedBy : uint8_t {
  kSum,          // left + right, of different things
  kScale,        // left times a number, where left is no gradient
  kScaleBy,      // left times right, one of which is not what is multiplied in a step
  kCoefficient,  // the coefficient of left, which is no norm
};

struct OriginMixture {
  MixedBy by = MixedBy::kSum;
  Origin left;   // at the first element that was mixed so
  Origin right;  // kSum and kScaleBy only
  auto operator<=>(const OriginMixture&) const = default;
};

// Who looked at a value, or kept it.
enum class OriginUse : uint8_t {
  kForwardParameter,   // computation reads a whole tensor
  kBackwardParameter,  // the same
  kNormGradient,       // a sum of squares reads a gradient
  kClipCoefficient,    // gradients are multiplied by this
  kUpdateParameter,    // an update reads a parameter ...
  kUpdateGradient,     // ... and for the same elements their gradient
  kUpdateExpAvg,       // ... and moments
  kUpdateExpAvgSq,
  kHeldParameter,  // kept at the optimizer boundary
  kHeldGradient,
  kHeldExpAvg,
  kHeldExpAvgSq,
};

struct OriginRecord {
  OriginUse use = OriginUse::kForwardParameter;
  int32_t rank = -1;
  int32_t event = -1;   // index in the rank's issue order; -1 at the boundary
  int32_t buffer = -1;  // index into the rank's RankEvents::buffers; -1: of several
  // Which elements the trainer takes them to be. Of an update: those that its parameter range
  // really held; tensor -1 if that was no parameter. At the boundary tensor -1 is padding, and
  // the range one of the buffer. Norm and coefficient have none.
  int32_t tensor = -1;
  ElementRange range;
  // kUpdateParameter only: the tensor that the update was meant for, the one whose
  // hyper-parameters it used, and its step count, this update included.
  int32_t named_tensor = -1;
  int32_t hyper_parameters_of = -1;
  int64_t step_count = 0;
  // Slice of StepOrigins::runs; their counts add up to range.count.
  uint32_t first_run = 0;
  uint32_t run_count = 0;
};

struct StepOrigins {
  std::vector<OriginRecord> records;  // empty: not observed
  std::vector<OriginRun> runs;
  std::vector<std::vector<OriginTerm>> term_sets;  // terms ascend, and differ in more than count
  std::vector<OriginMixture> mixtures;
};

absl::string_view Name(OriginKind value);  // "never_written"
absl::string_view Name(OriginUse value);   // "forward_parameter"

}  // namespace shardproof

#endif  // INVARIANTS_OBSERVATION_ORIGIN_H_
