#include "trainer/engines/rank_memory.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace shardproof {
namespace {

constexpr int64_t kAlignmentElements = 16;  // one cache line

// In floats: other dtypes take what they need of them.
int64_t Floats(const BufferSpec& spec) {
  return spec.elements * DtypeBytes(spec.dtype) / static_cast<int64_t>(sizeof(float));
}

int64_t Aligned(int64_t elements) {
  return (elements + kAlignmentElements - 1) / kAlignmentElements * kAlignmentElements;
}

}  // namespace

void RankMemory::FreeMemory::operator()(float* memory) const { std::free(memory); }

double RankMemory::Bytes(const StepPlan& plan) {
  double elements = 0;
  for (const BufferSpec& spec : plan.buffers) {
    elements += static_cast<double>(Aligned(Floats(spec)));
  }
  return elements * sizeof(float);
}

RankMemory::RankMemory(const StepPlan& plan) : used_(plan.buffers.size(), false) {
  memory_.reset(static_cast<float*>(
      std::aligned_alloc(kAlignmentElements * sizeof(float),
                         std::max<int64_t>(static_cast<int64_t>(Bytes(plan)), 64))));
  if (memory_ == nullptr) return;
  float* next = memory_.get();
  for (const BufferSpec& spec : plan.buffers) {
    begin_.push_back(next);
    floats_.push_back(Floats(spec));
    next += Aligned(floats_.back());
  }
}

void RankMemory::Fill(int32_t buffer, ElementRange range, Poison kind) {
  float* begin = begin_[buffer] + range.first;
  std::fill(begin, begin + range.count, std::bit_cast<float>(PoisonBits(kind, buffer)));
}

void RankMemory::Allocate(int32_t buffer) {
  if (used_[buffer]) return;
  used_[buffer] = true;
  Fill(buffer, {0, floats_[buffer]}, Poison::kNeverWritten);
}

void RankMemory::Free(int32_t buffer) { Fill(buffer, {0, floats_[buffer]}, Poison::kFreed); }

}  // namespace shardproof
