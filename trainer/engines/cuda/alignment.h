// How memory on a device is aligned here.
#ifndef TRAINER_ENGINES_CUDA_ALIGNMENT_H_
#define TRAINER_ENGINES_CUDA_ALIGNMENT_H_

#include <cstdint>

namespace shardproof {

// Bytes. cudaMalloc's results are multiples of it, and so is the begin of every buffer that lies
// in a piece of memory with others.
inline constexpr int64_t kBufferAlignment = 256;

// Bytes of the widest loads. cuBLAS picks its kernels by the alignment of addresses too, so an
// operand that is not at a multiple of this could have other bits.
inline constexpr int64_t kOperandAlignment = 16;

inline bool IsAlignedOperand(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kOperandAlignment == 0;
}

// What `bytes` take up where buffers lie one behind the other.
inline constexpr int64_t AlignedBytes(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}
inline constexpr int64_t AlignedFloatBytes(int64_t count) {
  return AlignedBytes(count * static_cast<int64_t>(sizeof(float)));
}

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_ALIGNMENT_H_
