// Deadline: a point of the steady clock by which a wait ends, whatever the wall clock does.
#ifndef COLLECTIVES_LAUNCH_DEADLINE_H_
#define COLLECTIVES_LAUNCH_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/time/time.h"

namespace shardproof {

class Deadline {
 public:
  // At most a year ahead, so that an infinite duration does not overflow the clock.
  static Deadline In(absl::Duration duration) {
    const absl::Duration bounded =
        std::clamp(duration, absl::ZeroDuration(), absl::Hours(24 * 365));
    return Deadline(std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(bounded));
  }

  bool Expired() const { return std::chrono::steady_clock::now() >= point_; }
  // For a condition variable.
  std::chrono::steady_clock::time_point point() const { return point_; }
  // For poll(): what is left, rounded up so that a wake finds it expired; at most a minute, after
  // which the caller polls again.
  int PollMilliseconds() const {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(point_ - std::chrono::steady_clock::now());
    return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
  }

  static Deadline Earlier(Deadline a, Deadline b) { return a.point_ < b.point_ ? a : b; }

 private:
  explicit Deadline(std::chrono::steady_clock::time_point point) : point_(point) {}

  std::chrono::steady_clock::time_point point_;
};

}  // namespace shardproof

#endif  // COLLECTIVES_LAUNCH_DEADLINE_H_
