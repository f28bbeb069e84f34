// Exposed communication: how long a step's collectives ran while its device computed nothing.
#ifndef TRAINER_BENCH_EXPOSED_H_
#define TRAINER_BENCH_EXPOSED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace shardproof {

// One kernel on a device. end_ns >= start_ns.
struct KernelSpan {
  int32_t device = 0;
  bool collective = false;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

// The time in which at least one collective runs on `device` and nothing else does, in
// nanoseconds. Spans of other devices do not count; order does not matter. Where a kernel of
// compute waits for a collective, that wait is in here; where nothing runs at all, it is not. What
// is no kernel, such as a copy by a copy engine, is not seen and hides nothing.
int64_t ExposedCommunicationNs(absl::Span<const KernelSpan> spans, int32_t device);

// What one watched step says of a process's devices.
struct ExposedTimes {
  std::vector<double> ms = {};  // by device; empty where it is not known
  std::string missing = {};     // then: why, in one line
};

// Of the kernels recorded during a step that has `collectives` kernels of collectives on each of
// the `devices`. Not known where a device has another number of them: records that came too late,
// or kernels that nobody has recognized, would make the time too short or too long.
ExposedTimes ExposedOfStep(absl::Span<const KernelSpan> spans, absl::Span<const int32_t> devices,
                           int64_t collectives);

}  // namespace shardproof

#endif  // TRAINER_BENCH_EXPOSED_H_
