#include "trainer/engines/cuda/launch_window.h"

#include <utility>

namespace shardproof {

// Waits and events; poison of what is allocated and freed; updates; a stage's kernels, and copies
// of what lies scattered.
int64_t LaunchesOf(const Op& op) {
  const int64_t uses = int64_t{op.parameter_use_count} + op.gradient_use_count;
  return 4 + op.wait_count + op.access_count + op.update_count + uses + 8 * op.stage_count;
}

int32_t LaunchWindow::Add(StreamId stream, int64_t launches) {
  int64_t& since_mark = since_mark_[static_cast<size_t>(stream)];
  since_mark += launches;
  if (since_mark < between_marks_) return -1;
  if (unused_.empty()) unused_.push_back(numbers_++);
  const int32_t number = unused_.back();
  unused_.pop_back();
  marks_[static_cast<size_t>(stream)].push_back({number, since_mark});
  pending_ += std::exchange(since_mark, 0);
  return number;
}

void LaunchWindow::Forget(std::deque<Mark>& marks) {
  pending_ -= marks.front().launches;
  unused_.push_back(marks.front().number);
  marks.pop_front();
}

void LaunchWindow::Clear() {
  for (std::deque<Mark>& marks : marks_) {
    while (!marks.empty()) Forget(marks);
  }
  since_mark_.fill(0);
}

}  // namespace shardproof
