// main() of tests on GPUs: fails at once, with one message, where there are fewer than the test
// was made for (SHARDPROOF_GPUS; 1 when it is started by hand). A skip would look like a pass.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* const asked = std::getenv("SHARDPROOF_GPUS");
  const int needed = asked == nullptr ? 1 : std::atoi(asked);
  int found = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  if (error != cudaSuccess) {
    std::fprintf(stderr, "this test needs %d GPU(s); CUDA finds none: %s, %s\n", needed,
                 cudaGetErrorName(error), cudaGetErrorString(error));
    return 1;
  }
  if (found < needed) {
    std::fprintf(stderr, "this test needs %d GPU(s); this machine has %d\n", needed, found);
    return 1;
  }
  return RUN_ALL_TESTS();
}
