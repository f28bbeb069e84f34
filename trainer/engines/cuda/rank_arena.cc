#include "trainer/engines/cuda/rank_arena.h"

#include <algorithm>
#include <utility>

#include "invariants/run_description/status_macros.h"
#include "trainer/engines/cuda/cuda_kernels.h"
#include "trainer/engines/cuda/cuda_status.h"

namespace shardproof {
namespace {

absl::StatusOr<int64_t> FreeBytes() {
  size_t free = 0;
  size_t total = 0;
  SHARDPROOF_CUDA_OK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

const Arena& Largest(absl::Span<const Arena> arenas) {
  return *std::max_element(arenas.begin(), arenas.end(),
                           [](const Arena& a, const Arena& b) { return a.total < b.total; });
}

}  // namespace

int64_t DriverFigure(int64_t taken, int64_t asked) {
  // Four times the 2 MiB in which the driver gives memory.
  constexpr int64_t kRounding = int64_t{8} << 20;
  return taken >= asked && taken <= asked + kRounding ? taken : -1;
}

DeviceNeed RankArena::NeedOf(DeviceNeed need, absl::Span<const Arena> arenas) {
  const Arena& largest = Largest(arenas);
  need.arena_steady = largest.steady;
  need.arena_total = largest.total;
  return need;
}

absl::Status RankArena::CheckRoom(const DeviceNeed& need) {
  SHARDPROOF_ASSIGN_OR_RETURN(const int64_t free, FreeBytes());
  const int64_t asked = need.arena_total + need.workspace;
  return free >= asked ? absl::OkStatus() : OutOfDeviceMemory(need, asked, free);
}

absl::StatusOr<DeviceMemory> RankArena::Take(int64_t bytes) const {
  SHARDPROOF_ASSIGN_OR_RETURN(const int64_t free, FreeBytes());
  absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(bytes, "the arena");
  if (absl::IsResourceExhausted(memory.status())) {
    return OutOfDeviceMemory(need_, bytes, free);
  }
  return memory;
}

absl::Status RankArena::Measure(int64_t bytes, int64_t& taken) {
  SHARDPROOF_ASSIGN_OR_RETURN(const int64_t before, FreeBytes());
  SHARDPROOF_ASSIGN_OR_RETURN(memory_, Take(bytes));
  SHARDPROOF_ASSIGN_OR_RETURN(const int64_t after, FreeBytes());
  taken = DriverFigure(before - after, bytes);
  return absl::OkStatus();
}

absl::Status RankArena::Allocate(DeviceNeed need, KeptRegion kept, absl::Span<const Arena> arenas,
                                 bool measured) {
  need_ = std::move(need);
  kept_ = std::move(kept);
  arena_ = Largest(arenas);
  for (const Arena& arena : arenas) plan_peak_ = std::max(plan_peak_, arena.plan_peak);
  if (!measured) {
    SHARDPROOF_ASSIGN_OR_RETURN(memory_, Take(arena_.total));
    return absl::OkStatus();
  }
  SHARDPROOF_RETURN_IF_ERROR(Measure(arena_.steady, driver_steady_));
  memory_ = DeviceMemory();
  return Measure(arena_.total, driver_peak_);
}

absl::Status RankArena::Use(const StepPlan& plan, Arena arena) {
  arena_ = std::move(arena);
  plan_peak_ = std::max(plan_peak_, arena_.plan_peak);
  if (arena_.total > memory_.bytes()) {
    need_.arena_total = arena_.total;
    SHARDPROOF_ASSIGN_OR_RETURN(DeviceMemory larger, Take(arena_.total));
    SHARDPROOF_CUDA_OK(cudaMemcpy(larger.data(), memory_.data(), static_cast<size_t>(kept_.bytes),
                                  cudaMemcpyDeviceToDevice));
    // A copy on the device may still run when the call returns.
    SHARDPROOF_CUDA_OK(cudaDeviceSynchronize());
    memory_ = std::move(larger);
  }
  floats_.clear();
  for (const BufferSpec& spec : plan.buffers) {
    floats_.push_back(spec.elements * DtypeBytes(spec.dtype) / static_cast<int64_t>(sizeof(float)));
  }
  PlaceBuffers();
  return absl::OkStatus();
}

// Each buffer at its first place: those of the start, and those that are touched before an
// allocation. Begin moves them.
void RankArena::PlaceBuffers() {
  begin_.assign(floats_.size(), nullptr);
  for (auto lifetime = arena_.lifetimes.rbegin(); lifetime != arena_.lifetimes.rend(); ++lifetime) {
    begin_[lifetime->buffer] = At(lifetime->offset);
  }
  for (size_t buffer = 0; buffer < begin_.size(); ++buffer) {
    if (kept_.offset[buffer] >= 0) begin_[buffer] = At(kept_.offset[buffer]);
  }
}

absl::Status RankArena::Begin(int32_t access, int32_t buffer, bool poison, cudaStream_t stream) {
  const int32_t lifetime = arena_.lifetime_of_access[access];
  if (lifetime >= 0) begin_[buffer] = At(arena_.lifetimes[lifetime].offset);
  if (!poison) return absl::OkStatus();
  return Poison(shardproof::Poison::kNeverWritten, buffer, stream);
}

absl::Status RankArena::Poison(shardproof::Poison kind, int32_t buffer, cudaStream_t stream) {
  SHARDPROOF_CUDA_OK(cuda::Fill(begin_[buffer], floats_[buffer], PoisonBits(kind, buffer), stream));
  return absl::OkStatus();
}

}  // namespace shardproof
