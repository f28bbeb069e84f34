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

RankMemory::RankMemory(const StepPlan& plan, const Placement& placement)
    : used_(plan.buffers.size(), false), parts_(plan.buffers.size()) {
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
  for (size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
    const BufferSpec& spec = plan.buffers[buffer];
    if (spec.set < 0) continue;
    const TensorSet& set = placement.sets[spec.set];
    const bool parameters = spec.role == BufferRole::kParameter;
    if (!parameters && spec.role != BufferRole::kUnshardedParameter) continue;
    if (set.owner >= 0) {
      for (const Segment& segment : set.layout.segments) {
        const int64_t first = set.layout.offset(segment);
        parts_[buffer].push_back({first, first + segment.count, parameters ? 0 : -1});
      }
    } else {
      const int64_t shard = std::max<int64_t>(set.layout.shard_elements, 1);
      for (int64_t first = 0; first < spec.elements; first += shard) {
        parts_[buffer].push_back({first, first + shard, parameters ? 0 : -1});
      }
    }
  }
}

void RankMemory::Fill(int32_t buffer, ElementRange range, Poison kind) {
  const uint32_t bits =
      0x7fc00000u | (static_cast<uint32_t>(kind) << 16) | (static_cast<uint32_t>(buffer) & 0xffffu);
  float* begin = begin_[buffer] + range.first;
  std::fill(begin, begin + range.count, std::bit_cast<float>(bits));
}

void RankMemory::Allocate(int32_t buffer) {
  if (used_[buffer]) return;
  used_[buffer] = true;
  Fill(buffer, {0, floats_[buffer]}, Poison::kNeverWritten);
}

void RankMemory::Free(int32_t buffer) {
  Fill(buffer, {0, floats_[buffer]}, Poison::kFreed);
  for (Part& part : parts_[buffer]) part.version = -1;
}

int32_t RankMemory::Version(int32_t buffer, ElementRange range) const {
  int32_t least = -1;
  for (const Part& part : parts_[buffer]) {
    if (part.first >= range.end() || part.end <= range.first) continue;
    if (part.version < 0) return -1;
    least = least < 0 ? part.version : std::min(least, part.version);
  }
  return least;
}

void RankMemory::SetVersion(int32_t buffer, ElementRange range, int32_t version) {
  for (Part& part : parts_[buffer]) {
    if (part.first >= range.first && part.first < range.end()) part.version = version;
  }
}

}  // namespace shardproof
