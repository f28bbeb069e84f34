// Origins and sums of contributions in words, for violations.
#ifndef INVARIANTS_CHECKS_ORIGIN_TEXT_H_
#define INVARIANTS_CHECKS_ORIGIN_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// "element 3 of layers.0.bias".
std::string ElementText(const ModelDescription& model, int32_t tensor, int64_t element);

// "element 3 of layers.0.bias, version 1", "padding of bucket 0", "gradient of element 2 of
// layers.1.weight + padding of bucket 0". Indices that the observation lacks are said to be
// unknown.
std::string OriginText(const RunDescription& run, const StepObservation& observed,
                       const Origin& origin);

// Whether the origin is a sum in which padding took part.
bool AddsPadding(const StepObservation& observed, const Origin& origin);

// The set of terms, empty for an index that the observation lacks.
absl::Span<const OriginTerm> TermsOf(const StepObservation& observed, int32_t terms);

// How a sum of contributions differs from the expected one.
struct SumFaults {
  std::string text;   // "rank 2's micro-batch 1 is missing; rank 0 is counted twice"
  double ratio = 0;   // what it weighs over what it should; 0: as much, or not comparable
  std::string cause;  // likely
};

// `expected`: the terms that should be there, ascending, each with the scale and the clips that
// it should have. Terms that have the same product of other factors are as good. Text is empty
// if nothing differs.
SumFaults CompareSums(const RunDescription& run, absl::Span<const OriginTerm> expected,
                      absl::Span<const OriginTerm> actual);

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_ORIGIN_TEXT_H_
