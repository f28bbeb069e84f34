// How many GPUs a test was made for.
#ifndef COLLECTIVES_NCCL_GPUS_FOR_TEST_H_
#define COLLECTIVES_NCCL_GPUS_FOR_TEST_H_

#include <cstdint>
#include <cstdlib>

#include "absl/status/statusor.h"
#include "collectives/required_gpus.h"
#include "gtest/gtest.h"

namespace shardproof {

// SHARDPROOF_GPUS, which ci/rules/gpu_test.bzl sets. Where it is no number from 1, the test that
// asks fails and gets 0, which makes no world: with a number of our own it would pass without the
// GPUs that it is for.
inline int32_t GpusForTest() {
  const absl::StatusOr<int32_t> gpus = RequiredGpus(std::getenv("SHARDPROOF_GPUS"));
  if (gpus.ok()) return *gpus;
  ADD_FAILURE() << gpus.status();
  return 0;
}

}  // namespace shardproof

#endif  // COLLECTIVES_NCCL_GPUS_FOR_TEST_H_
