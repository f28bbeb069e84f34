// The figures of one step as JSON, alike in every document of shardproof. Unobserved is null.
#ifndef INVARIANTS_REPORT_FIGURES_JSON_H_
#define INVARIANTS_REPORT_FIGURES_JSON_H_

#include "invariants/report/figures.h"
#include "invariants/run_description/run_description.h"
#include "nlohmann/json.hpp"

namespace shardproof {

using OrderedJson = nlohmann::ordered_json;

// JSON has no infinities, and a script must not mistake them for "not observed": the strings
// "nan", "inf" and "-inf".
OrderedJson NumberJson(double value);

// {name, parameters, logical_bytes, units}
OrderedJson ModelJson(const ModelDescription& model);

// The prefetch of full_shard, null in every other mode.
OrderedJson PrefetchJson(const ShardingDescription& sharding);

// {parameter, gradient, optimizer}
OrderedJson FactorsJson(const StepFigures& figures);

// {all_reduce, all_gather_forward, all_gather_backward, all_gather_optimizer, reduce_scatter,
// broadcast}, each {count, payload_bytes, bus_bytes}
OrderedJson CollectivesJson(const StepFigures& figures);

// [{kind, purpose, count, payload_bytes}]
OrderedJson OtherCollectivesJson(const StepFigures& figures);

// [{rank, parameter_bytes, gradient_bytes, optimizer_bytes, padding_bytes, scalar_bytes,
// steady_bytes, peak_bytes}]
OrderedJson RanksJson(const StepFigures& figures);

// [{rank, collective_kernels: {all_reduce, ...}, driver_steady_bytes, driver_peak_bytes}]; null
// where nobody watched the GPUs, and so is what of it nobody saw.
OrderedJson DevicesJson(const StepFigures& figures);

// The document as text with a newline at its end; bytes that are not UTF-8 are replaced.
std::string PrintJson(const OrderedJson& document);

}  // namespace shardproof

#endif  // INVARIANTS_REPORT_FIGURES_JSON_H_
