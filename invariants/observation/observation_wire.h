// Observations as bytes, for the processes of one job: each sends what its ranks did to the one
// that judges.
//
// Compact and fast, not for keeping: the bytes mean something to processes of the same build alone,
// which a version and a checksum make sure of. Files are observation_io.h's.
//
// Everything travels but the origins of values, which only engines of one process show.
#ifndef INVARIANTS_OBSERVATION_OBSERVATION_WIRE_H_
#define INVARIANTS_OBSERVATION_OBSERVATION_WIRE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/observation/observation.h"

namespace shardproof {

// The step as bytes, with every value that it shows.
std::string PackStep(const StepObservation& step);

// A step that was received, and the memory to which its segments point. Moves keep that valid.
struct UnpackedStep {
  StepObservation observation;
  std::vector<float> values;
};

// InvalidArgument for bytes that PackStep of this build did not give: cut short, longer, or with
// any bit changed. It says what is wrong with them. What is returned is whole: no slice or buffer
// index leads outside of its table.
absl::StatusOr<UnpackedStep> UnpackStep(absl::string_view bytes);

}  // namespace shardproof

#endif  // INVARIANTS_OBSERVATION_OBSERVATION_WIRE_H_
