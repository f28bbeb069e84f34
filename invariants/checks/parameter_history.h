// The observed parameters of the step before, without keeping them while they are right.
//
// Checks ask how a parameter moved. Values of old steps are dropped, so that a copy would be
// needed; but as long as a segment was bit-equal to the reference, the reference's
// previous_parameter is that copy. Only segments that differed are copied.
#ifndef INVARIANTS_CHECKS_PARAMETER_HISTORY_H_
#define INVARIANTS_CHECKS_PARAMETER_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "invariants/observation/observation.h"

namespace shardproof {

// Calls come in the order BeginStep, then Previous and Remember for each parameter segment
// with values, in the order shown.
class ParameterHistory {
 public:
  void BeginStep();
  // The segment's observed values before this step. `reference_previous` (the reference's,
  // from the segment's first element on) when the bits were the same; before the first
  // step they are taken to be, since the values before training are not shown. Null when
  // the step before did not show this segment at this place.
  const float* Previous(int32_t rank, const StateSegment& segment,
                        const float* reference_previous) const;
  void Remember(int32_t rank, const StateSegment& segment, bool equals_reference);
  // A step without values: what follows has no past.
  void Forget();

 private:
  struct Entry {
    int32_t rank = -1;
    int32_t tensor = -1;
    ElementRange range;
    bool equals_reference = false;
    std::vector<float> copy;  // when it does not
  };
  std::vector<Entry> entries_;
  size_t next_ = 0;
  bool begun_ = false;
  bool first_step_ = true;
};

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_PARAMETER_HISTORY_H_
