// Exposed communication: how long a step's collectives ran while its device computed nothing.
#ifndef TRAINER_BENCH_EXPOSED_H_
#define TRAINER_BENCH_EXPOSED_H_

#include <cstdint>

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

}  // namespace shardproof

#endif  // TRAINER_BENCH_EXPOSED_H_
