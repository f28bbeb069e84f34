// How many GPUs a test was made for.
#ifndef COLLECTIVES_NCCL_GPUS_FOR_TEST_H_
#define COLLECTIVES_NCCL_GPUS_FOR_TEST_H_

#include <cstdint>
#include <cstdlib>

namespace shardproof {

// SHARDPROOF_GPUS, which ci/rules/gpu_test.bzl sets; 1 without it.
inline int32_t GpusForTest() {
  const char* const text = std::getenv("SHARDPROOF_GPUS");
  return text == nullptr ? 1 : std::atoi(text);
}

}  // namespace shardproof

#endif  // COLLECTIVES_NCCL_GPUS_FOR_TEST_H_
