// RankMemory: the buffers of one rank, with poison and parameter versions.
#ifndef TRAINER_ENGINES_RANK_MEMORY_H_
#define TRAINER_ENGINES_RANK_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

enum class Poison : uint32_t { kPadding = 1, kNeverWritten = 2, kFreed = 3 };

class RankMemory {
 public:
  // All memory at once, from one allocation; pages that are never touched cost nothing.
  RankMemory(const StepPlan& plan, const Placement& placement);

  float* data(int32_t buffer) { return buffer < 0 ? nullptr : begin_[buffer]; }
  // A float64 buffer's value lies in two floats; every buffer begins at a cache line.
  double* doubles(int32_t buffer) { return reinterpret_cast<double*>(begin_[buffer]); }
  float* data(const BufferRange& range) { return data(range.buffer) + range.range.first; }

  // Fills elements with the NaN that names `kind` and the buffer.
  void Fill(int32_t buffer, ElementRange range, Poison kind);
  // On allocation: poisons memory that nobody has used yet. Freed memory is poisoned already.
  void Allocate(int32_t buffer);
  void Free(int32_t buffer);

  // Updates carried by the values of a parameter buffer: the least over the parts that the
  // range touches; -1 where nothing was written. Other buffers have no versions: -1.
  int32_t Version(int32_t buffer, ElementRange range) const;
  // Sets the version of the parts that begin within the range.
  void SetVersion(int32_t buffer, ElementRange range, int32_t version);

  // False when the memory could not be had; then nothing else may be called.
  bool ok() const { return memory_ != nullptr; }

  // What the constructor takes; a double, since a plan's sum may be beyond int64.
  static double Bytes(const StepPlan& plan);

 private:
  struct FreeMemory {
    void operator()(float* memory) const;
  };
  // Parts of a parameter buffer that are written separately: shards, or an owner's tensors.
  struct Part {
    int64_t first = 0;
    int64_t end = 0;
    int32_t version = -1;
  };

  std::unique_ptr<float[], FreeMemory> memory_;
  std::vector<float*> begin_;             // by buffer
  std::vector<int64_t> floats_;           // by buffer: its memory
  std::vector<bool> used_;                // by buffer
  std::vector<std::vector<Part>> parts_;  // by buffer
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_RANK_MEMORY_H_
