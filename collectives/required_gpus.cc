#include "collectives/required_gpus.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace shardproof {

absl::StatusOr<int32_t> RequiredGpus(const char* value) {
  int32_t gpus = 0;
  if (value != nullptr && absl::SimpleAtoi(value, &gpus) && gpus >= 1) return gpus;
  return absl::InvalidArgumentError(absl::StrCat(
      "SHARDPROOF_GPUS ", value == nullptr ? "is not set" : absl::StrCat("is '", value, "'"),
      "; accepted: the number of GPUs that the test is for, from 1"));
}

}  // namespace shardproof
