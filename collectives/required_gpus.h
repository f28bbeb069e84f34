// How many GPUs a test was made for. It must ask before anything else, and fail where there are
// fewer: nobody notices a test that skips itself.
#ifndef COLLECTIVES_REQUIRED_GPUS_H_
#define COLLECTIVES_REQUIRED_GPUS_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace shardproof {

// `value` is that of SHARDPROOF_GPUS, which every GPU target sets (ci/rules/gpu_test.bzl), or null.
// InvalidArgument that names it, unless it is a number from 1.
absl::StatusOr<int32_t> RequiredGpus(const char* value);

}  // namespace shardproof

#endif  // COLLECTIVES_REQUIRED_GPUS_H_
