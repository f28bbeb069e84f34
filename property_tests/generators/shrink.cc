#include "property_tests/generators/shrink.h"

#include <utility>

#include "absl/time/clock.h"

namespace shardproof {

ShrunkCase ShrinkCase(rc::Shrinkable<CaseSpec> failing,
                      const std::function<bool(const CaseSpec&)>& fails,
                      const ShrinkLimits& limits) {
  const absl::Time end = absl::Now() + limits.time;
  ShrunkCase result;
  for (;;) {
    rc::Seq<rc::Shrinkable<CaseSpec>> smaller = failing.shrinks();
    rc::Maybe<rc::Shrinkable<CaseSpec>> next = smaller.next();
    while (next && result.tries < limits.tries && absl::Now() < end) {
      ++result.tries;
      if (fails(next->value())) break;
      next = smaller.next();
    }
    result.complete = !next;
    if (!next || result.tries >= limits.tries || absl::Now() >= end) {
      result.spec = failing.value();
      return result;
    }
    failing = *std::move(next);
  }
}

}  // namespace shardproof
