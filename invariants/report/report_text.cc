#include "invariants/report/report_text.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace shardproof {

std::string WithSeparators(int64_t value) {
  std::string digits = absl::StrCat(value);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string FormatBytes(int64_t bytes) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  constexpr int64_t kGiB = int64_t{1} << 30;
  constexpr int64_t kTiB = int64_t{1} << 40;
  const double count = static_cast<double>(bytes);
  if (bytes >= 10 * kTiB) return absl::StrFormat("%.2f TiB", count / kTiB);
  if (bytes >= 10 * kGiB) return absl::StrFormat("%.2f GiB", count / kGiB);
  if (bytes >= kMiB) return absl::StrFormat("%.2f MiB", count / kMiB);
  return WithSeparators(bytes) + " B";
}

std::string FormatFactor(double factor) {
  if (factor == std::round(factor)) return absl::StrFormat("%.0f", factor);
  return absl::StrFormat("%.3f", factor);
}

std::string DescribeRun(const RunDescription& run, absl::string_view engine) {
  const auto counted = [](int64_t count, absl::string_view what, absl::string_view plural) {
    return absl::StrCat(WithSeparators(count), " ", what, count == 1 ? "" : plural);
  };
  const int64_t parameters = ParameterElements(run.model);
  const int64_t units = static_cast<int64_t>(run.model.units.size());
  return absl::StrCat(
      run.model.name, ": ", counted(parameters, "parameter", "s"), " (",
      FormatBytes(parameters * DtypeBytes(Dtype::kFloat32)), "), ", counted(units, "unit", "s"),
      ", ", counted(run.sharding.world_size.value, "rank", "s"), ", ",
      engine.empty() ? "" : absl::StrCat(engine, " engine, "), counted(run.data.steps, "step", "s"),
      " of ", counted(run.data.num_micro_batches, "micro-batch", "es"), " of ",
      run.data.micro_batch_size, ", ", Name(run.optimizer.kind), ", seed ", run.data.seed);
}

}  // namespace shardproof
