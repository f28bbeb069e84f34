// RankMemory: the buffers of one rank, with poison.
#ifndef TRAINER_ENGINES_RANK_MEMORY_H_
#define TRAINER_ENGINES_RANK_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "trainer/plan/step_plan.h"

namespace shardproof {

enum class Poison : uint32_t { kPadding = 1, kNeverWritten = 2, kFreed = 3 };

// The quiet NaN that names `kind` and the buffer.
inline uint32_t PoisonBits(Poison kind, int32_t buffer) {
  return 0x7fc00000u | (static_cast<uint32_t>(kind) << 16) |
         (static_cast<uint32_t>(buffer) & 0xffffu);
}

class RankMemory {
 public:
  // All memory at once, from one allocation; pages that are never touched cost nothing.
  explicit RankMemory(const StepPlan& plan);

  // Where each buffer begins.
  absl::Span<float* const> buffers() const { return begin_; }
  float* data(int32_t buffer) { return buffer < 0 ? nullptr : begin_[buffer]; }
  // A float64 buffer's value lies in two floats; every buffer begins at a cache line.
  double* doubles(int32_t buffer) { return reinterpret_cast<double*>(begin_[buffer]); }
  float* data(const BufferRange& range) { return data(range.buffer) + range.range.first; }

  // Fills elements with the NaN that names `kind` and the buffer.
  void Fill(int32_t buffer, ElementRange range, Poison kind);
  // On allocation: poisons memory that nobody has used yet. Freed memory is poisoned already.
  void Allocate(int32_t buffer);
  void Free(int32_t buffer);

  // False when the memory could not be had; then nothing else may be called.
  bool ok() const { return memory_ != nullptr; }

  // What the constructor takes; a double, since a plan's sum may be beyond int64.
  static double Bytes(const StepPlan& plan);

 private:
  struct FreeMemory {
    void operator()(float* memory) const;
  };

  std::unique_ptr<float[], FreeMemory> memory_;
  std::vector<float*> begin_;    // by buffer
  std::vector<int64_t> floats_;  // by buffer: its memory
  std::vector<bool> used_;       // by buffer
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_RANK_MEMORY_H_
