#include "collectives/nccl/kernel_witness.h"

#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kBufferAlignment = 8;  // what CUPTI asks for

// All versions share the members that are read here; newer ones follow.
#if CUPTI_API_VERSION >= 130000
using ActivityKernel = CUpti_ActivityKernel10;
#else
using ActivityKernel = CUpti_ActivityKernel9;
#endif

absl::Status CuptiStatus(CUptiResult result, absl::string_view call) {
  if (result == CUPTI_SUCCESS) return absl::OkStatus();
  const char* text = nullptr;
  if (cuptiGetResultString(result, &text) != CUPTI_SUCCESS) text = "an unknown error";
  return absl::UnavailableError(absl::StrCat(call, ": ", text, " (", static_cast<int>(result),
                                             "): kernels cannot be recorded here"));
}

// CUPTI's callbacks are functions without an argument of ours, and stay registered to the end of
// the process, so what they fill is the process's too. It is never destroyed: CUPTI may give
// back buffers when the process ends.
struct Recording {
  std::mutex mutex;
  bool active = false;  // there is a witness
  std::vector<KernelRecord> kernels;
  uint64_t dropped = 0;
};

Recording& TheRecording() {
  static Recording* const recording = new Recording;
  return *recording;
}

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;  // CUPTI then drops records, and says so
  *max_records = 0;                               // as many as fit
}

void Keep(const CUpti_Activity& activity, std::vector<KernelRecord>& kernels) {
  if (activity.kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return;
  const auto& kernel = reinterpret_cast<const ActivityKernel&>(activity);
  KernelRecord record;
  record.name = kernel.name == nullptr ? "" : kernel.name;
  record.device = static_cast<int32_t>(kernel.deviceId);
  record.stream = kernel.streamId;
  record.start_ns = kernel.start;
  record.end_ns = kernel.end;
  kernels.push_back(std::move(record));
}

void CUPTIAPI TakeBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                         size_t valid_size) {
  Recording& recording = TheRecording();
  const std::lock_guard<std::mutex> lock(recording.mutex);
  CUpti_Activity* activity = nullptr;
  while (recording.active &&
         cuptiActivityGetNextRecord(buffer, valid_size, &activity) == CUPTI_SUCCESS) {
    Keep(*activity, recording.kernels);
  }
  size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) {
    recording.dropped += dropped;
  }
  std::free(buffer);
}

class CuptiWitness final : public KernelWitness {
 public:
  // Errors of a destructor have nobody to go to.
  ~CuptiWitness() override {
    static_cast<void>(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
    static_cast<void>(cuptiActivityFlushAll(0));
    Recording& recording = TheRecording();
    const std::lock_guard<std::mutex> lock(recording.mutex);
    recording.active = false;
    recording.kernels.clear();
    recording.dropped = 0;
  }

  absl::StatusOr<std::vector<KernelRecord>> Collect() override {
    SHARDPROOF_RETURN_IF_ERROR(CuptiStatus(cuptiActivityFlushAll(0), "cuptiActivityFlushAll(0)"));
    std::vector<KernelRecord> kernels;
    {
      Recording& recording = TheRecording();
      const std::lock_guard<std::mutex> lock(recording.mutex);
      kernels.swap(recording.kernels);
      if (const uint64_t dropped = std::exchange(recording.dropped, 0); dropped > 0) {
        return absl::DataLossError(absl::StrCat("CUPTI has dropped ", dropped,
                                                " activity records: kernels cannot be counted"));
      }
    }
    std::stable_sort(kernels.begin(), kernels.end(),
                     [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
    return kernels;
  }
};

absl::Status StartRecording() {
  SHARDPROOF_RETURN_IF_ERROR(CuptiStatus(cuptiActivityRegisterCallbacks(GiveBuffer, TakeBuffer),
                                         "cuptiActivityRegisterCallbacks"));
  return CuptiStatus(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL),
                     "cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)");
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelWitness>> KernelWitness::Start() {
  Recording& recording = TheRecording();
  {
    const std::lock_guard<std::mutex> lock(recording.mutex);
    if (recording.active) {
      return absl::FailedPreconditionError(
          "there is a KernelWitness already, and CUPTI's records are one stream for the whole "
          "process: end the other first");
    }
    recording.active = true;
  }
  // From here on the witness's end releases the recording, whatever happens.
  std::unique_ptr<KernelWitness> witness = std::make_unique<CuptiWitness>();
  SHARDPROOF_RETURN_IF_ERROR(StartRecording());
  return witness;
}

}  // namespace shardproof
