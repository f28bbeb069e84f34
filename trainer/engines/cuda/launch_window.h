// LaunchWindow: how far the host may run ahead of the GPU.
//
// CUDA makes the host wait inside of a launch once about 1024 operations are pending on a stream,
// where neither a deadline nor another rank's failure can reach it. A rank that stays below that
// can wait outside, and say what it waits for.
#ifndef TRAINER_ENGINES_CUDA_LAUNCH_WINDOW_H_
#define TRAINER_ENGINES_CUDA_LAUNCH_WINDOW_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/statusor.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"
#include "trainer/plan/step_plan.h"

namespace shardproof {

// About how many launches an operation takes. An operation of more than the window holds may
// still be held inside of one.
int64_t LaunchesOf(const Op& op);

// Keeps the account of marks, which are numbered from 0 and used again: an event each, which the
// caller records and asks.
class LaunchWindow {
 public:
  // `most` launches pending; a mark behind every `between_marks` of a stream.
  LaunchWindow(int64_t most, int64_t between_marks) : most_(most), between_marks_(between_marks) {}

  // `launches` more were enqueued on the stream. The mark to record behind them; -1: none is due.
  int32_t Add(StreamId stream, int64_t launches);

  // Whether fewer than `most` are pending. is_done(mark) is StatusOr<bool>; its error is returned.
  template <typename IsDone>
  absl::StatusOr<bool> HasRoom(IsDone is_done) {
    for (std::deque<Mark>& marks : marks_) {
      while (pending_ >= most_ && !marks.empty()) {
        SHARDPROOF_ASSIGN_OR_RETURN(const bool done, is_done(marks.front().number));
        if (!done) break;
        Forget(marks);
      }
    }
    return pending_ < most_;
  }

  // Nothing is pending any more.
  void Clear();

 private:
  struct Mark {
    int32_t number;
    int64_t launches;
  };
  void Forget(std::deque<Mark>& marks);

  const int64_t most_;
  const int64_t between_marks_;
  int64_t pending_ = 0;  // before marks
  std::array<int64_t, kStreams> since_mark_ = {};
  std::array<std::deque<Mark>, kStreams> marks_;  // by stream, in order
  std::vector<int32_t> unused_;
  int32_t numbers_ = 0;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_LAUNCH_WINDOW_H_
