// KernelWitness: which kernels the GPUs ran, by CUPTI's activity records. The third witness of what
// was communicated, beside the plan and the ledger: it knows nothing of either.
//
//   SHARDPROOF_ASSIGN_OR_RETURN(auto witness, KernelWitness::Start());
//   ... a step; wait until the GPUs have done it ...
//   SHARDPROOF_ASSIGN_OR_RETURN(std::vector<KernelRecord> kernels, witness->Collect());
//   CountCollectiveKernels(kernels)
#ifndef COLLECTIVES_NCCL_KERNEL_WITNESS_H_
#define COLLECTIVES_NCCL_KERNEL_WITNESS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

struct KernelRecord {
  std::string name;     // as CUPTI gives it: mangled
  int32_t device = 0;   // CUDA ordinal; with several GPUs in one process, what tells ranks apart
  uint32_t stream = 0;  // CUPTI's id of the stream
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
};

// CUPTI's records are one stream for the whole process, so one witness may exist at a time. Start,
// Collect and the destructor are called from one thread at a time; kernels may run on any.
class KernelWitness {
 public:
  // Records every kernel that is launched from now on, on all devices. FailedPrecondition if there
  // is a witness already; Unavailable, with CUPTI's words, where CUPTI cannot record: without a
  // GPU or a driver, or under a profiler.
  static absl::StatusOr<std::unique_ptr<KernelWitness>> Start();
  virtual ~KernelWitness() = default;

  // The kernels that ended since the last Collect, by start time. Those that run still come next
  // time: wait for the streams first. DataLoss if CUPTI has dropped records.
  virtual absl::StatusOr<std::vector<KernelRecord>> Collect() = 0;
};

// The collective that an NCCL kernel carries out, by its name, mangled or not:
// ncclDevKernel_AllReduce_Sum_f32_RING_LL(...), ncclKernel_... of older versions. Nothing for
// other kernels, those of ncclSend and ncclReduce included. A barrier of NCCL's world is an
// all-reduce.
std::optional<CollectiveKind> CollectiveKindOfKernel(absl::string_view name);

// Collective kernels of one device, by CollectiveKind.
struct KernelCounts {
  int64_t of(CollectiveKind kind) const { return counts[static_cast<size_t>(kind)]; }
  std::array<int64_t, 5> counts = {};
};
// By device; a device without any is missing.
std::map<int32_t, KernelCounts> CountCollectiveKernels(absl::Span<const KernelRecord> records);

}  // namespace shardproof

#endif  // COLLECTIVES_NCCL_KERNEL_WITNESS_H_
