#include "collectives/simulated/rank_order_sum.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

namespace shardproof {
namespace {

// Elements of the block that holds partial sums of more than kFused inputs: it and the
// inputs' blocks stay in the first-level cache.
constexpr int64_t kBlock = 1024;

// So many inputs are added in one pass, their partial sums in registers.
constexpr int kFused = 8;

// One pass over `n` inputs. An element of `sum` is written after that element of every input
// was read, so `sum` may be any of the inputs.
template <typename T, int n>
void SumFused(const T* const* inputs, int64_t first, int64_t count, T* sum) {
  const T* from[n];
  for (int rank = 0; rank < n; ++rank) from[rank] = inputs[rank] + first;
    // Only equal elements of `sum` and an input may alias: iterations are independent. Without
    // the pragma the in-place case would fall back to scalar code.
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    T partial = from[0][i];
    for (int rank = 1; rank < n; ++rank) partial += from[rank][i];
    sum[i] = partial;
  }
}

template <typename T>
void SumUpToFused(const T* const* inputs, int n, int64_t first, int64_t count, T* sum) {
  switch (n) {
    case 1:
      // The only input may be `sum` itself.
      std::memmove(sum, inputs[0] + first, count * sizeof(T));
      return;
    case 2:
      return SumFused<T, 2>(inputs, first, count, sum);
    case 3:
      return SumFused<T, 3>(inputs, first, count, sum);
    case 4:
      return SumFused<T, 4>(inputs, first, count, sum);
    case 5:
      return SumFused<T, 5>(inputs, first, count, sum);
    case 6:
      return SumFused<T, 6>(inputs, first, count, sum);
    case 7:
      return SumFused<T, 7>(inputs, first, count, sum);
    default:
      return SumFused<T, kFused>(inputs, first, count, sum);
  }
}

// More inputs than one pass takes: the partial sums of a block wait beside the inputs,
// because `sum` may be an input that a later pass still reads.
template <typename T>
void SumInBlocks(absl::Span<const T* const> inputs, int64_t count, T* sum) {
  T partial[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t size = std::min(kBlock, count - first);
    SumFused<T, kFused>(inputs.data(), first, size, partial);
    for (size_t rank = kFused; rank < inputs.size(); ++rank) {
      const T* const from = inputs[rank] + first;
      for (int64_t i = 0; i < size; ++i) partial[i] += from[i];
    }
    std::memcpy(sum + first, partial, size * sizeof(T));
  }
}

template <typename T>
void Sum(absl::Span<const T* const> inputs, int64_t count, T* sum) {
  if (count == 0) return;  // Pointers may be null then.
  if (inputs.size() > kFused) return SumInBlocks(inputs, count, sum);
  SumUpToFused(inputs.data(), static_cast<int>(inputs.size()), 0, count, sum);
}

}  // namespace

void SumInRankOrder(absl::Span<const float* const> inputs, int64_t count, float* sum) {
  Sum(inputs, count, sum);
}

void SumInRankOrder(absl::Span<const double* const> inputs, int64_t count, double* sum) {
  Sum(inputs, count, sum);
}

}  // namespace shardproof
