// Shrinking outside of RapidCheck's own loop, with bounds.
#ifndef PROPERTY_TESTS_GENERATORS_SHRINK_H_
#define PROPERTY_TESTS_GENERATORS_SHRINK_H_

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "property_tests/generators/case_spec.h"
#include "rapidcheck.h"

namespace shardproof {

struct ShrinkLimits {
  int64_t tries = 5000;  // cases that are asked for
  absl::Duration time = absl::Minutes(2);
};

struct ShrunkCase {
  CaseSpec spec;
  int64_t tries = 0;
  bool complete = false;  // nothing smaller fails; false: a limit was reached
};

// The first smaller case that still fails, and again from there. `fails` must hold for the value
// of `failing`.
ShrunkCase ShrinkCase(rc::Shrinkable<CaseSpec> failing,
                      const std::function<bool(const CaseSpec&)>& fails,
                      const ShrinkLimits& limits);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_GENERATORS_SHRINK_H_
