// main() of tests on GPUs: fails at once, with one message, where there are fewer than the test
// was made for (SHARDPROOF_GPUS), or where nobody says how many that is. A skip would look like a
// pass.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/required_gpus.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const absl::StatusOr<int32_t> needed = shardproof::RequiredGpus(std::getenv("SHARDPROOF_GPUS"));
  if (!needed.ok()) {
    std::fprintf(stderr, "%s\n", std::string(needed.status().message()).c_str());
    return 1;
  }
  int found = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  if (error != cudaSuccess) {
    std::fprintf(stderr, "this test needs %d GPU(s); CUDA finds none: %s, %s\n", *needed,
                 cudaGetErrorName(error), cudaGetErrorString(error));
    return 1;
  }
  if (found < *needed) {
    std::fprintf(stderr, "this test needs %d GPU(s); this machine has %d\n", *needed, found);
    return 1;
  }
  return RUN_ALL_TESTS();
}
