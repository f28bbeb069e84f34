// Numbers and runs as reports show them to people.
#ifndef INVARIANTS_REPORT_REPORT_TEXT_H_
#define INVARIANTS_REPORT_REPORT_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// "1,048,576".
std::string WithSeparators(int64_t value);

// "128.00 MiB", "9,260 B": exact below 1 MiB; GiB from 10 GiB on, TiB from 10 TiB on.
std::string FormatBytes(int64_t bytes);

// "4" rather than "4.000"; "1.003" where padding or imbalance shows.
std::string FormatFactor(double factor);

// What all modes of a run have in common: "mlp:8x2048: 33,554,432 parameters (128.00 MiB),
// 8 units, 4 ranks, cpu engine, 3 steps of 1 micro-batch of 16, adamw, seed 1". An empty engine is
// left out.
std::string DescribeRun(const RunDescription& run, absl::string_view engine);

}  // namespace shardproof

#endif  // INVARIANTS_REPORT_REPORT_TEXT_H_
