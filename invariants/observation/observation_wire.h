// Observations as bytes, for the processes of one job: each sends what its ranks did to the one
// that judges.
//
// Compact and fast, not for keeping: the bytes mean something to processes of the same build alone,
// which a version and checksums make sure of. Files are observation_io.h's.
//
// Values may take gigabytes. They are not copied: they are sent from where the step has them, and
// read from where they were received.
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

// A step as bytes: everything but values, and then the values of each segment that shows some, in
// order, which are the step's own and as long valid.
struct PackedStep {
  std::string head;
  std::vector<absl::string_view> values;

  // What to send, one behind the other. Valid as long as this and the step.
  std::vector<absl::string_view> Pieces() const;
};
PackedStep PackStep(const StepObservation& step);

// The step whose pieces are `bytes`, one behind the other. Its segments point into them; they begin
// at a multiple of four, as all memory from an allocator does. InvalidArgument for bytes that
// PackStep of this build did not give: cut short, longer, or with any bit changed. It says what is
// wrong with them. What is returned is whole: no slice or buffer index leads outside of its table.
absl::StatusOr<StepObservation> UnpackStep(absl::string_view bytes);

}  // namespace shardproof

#endif  // INVARIANTS_OBSERVATION_OBSERVATION_WIRE_H_
