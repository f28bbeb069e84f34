#include "invariants/report/figures_json.h"

#include <cmath>
#include <string>

namespace shardproof {
namespace {

std::string Text(absl::string_view text) { return std::string(text); }

OrderedJson CollectiveJson(const CollectiveFigures& figures) {
  return {{"count", figures.count},
          {"payload_bytes", figures.payload_bytes},
          {"bus_bytes", figures.bus_bytes}};
}

}  // namespace

OrderedJson NumberJson(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

OrderedJson ModelJson(const ModelDescription& model) {
  return {{"name", model.name},
          {"parameters", ParameterElements(model)},
          {"logical_bytes", ParameterElements(model) * DtypeBytes(Dtype::kFloat32)},
          {"units", model.units.size()}};
}

OrderedJson PrefetchJson(const ShardingDescription& sharding) {
  if (sharding.mode != Mode::kFullShard) return nullptr;
  return Text(Name(sharding.prefetch));
}

OrderedJson FactorsJson(const StepFigures& figures) {
  if (!figures.states_observed) return nullptr;
  return {{"parameter", NumberJson(figures.parameter_factor)},
          {"gradient", NumberJson(figures.gradient_factor)},
          {"optimizer", NumberJson(figures.optimizer_factor)}};
}

OrderedJson CollectivesJson(const StepFigures& figures) {
  if (!figures.events_observed) return nullptr;
  OrderedJson json;
  json["all_reduce"] = CollectiveJson(figures.all_reduce);
  json["all_gather_forward"] = CollectiveJson(figures.all_gather_forward);
  json["all_gather_backward"] = CollectiveJson(figures.all_gather_backward);
  json["all_gather_optimizer"] = CollectiveJson(figures.all_gather_optimizer);
  json["reduce_scatter"] = CollectiveJson(figures.reduce_scatter);
  json["broadcast"] = CollectiveJson(figures.broadcast);
  return json;
}

OrderedJson OtherCollectivesJson(const StepFigures& figures) {
  if (!figures.events_observed) return nullptr;
  OrderedJson json = OrderedJson::array();
  for (const OtherCollective& other : figures.others) {
    json.push_back({{"kind", Text(Name(other.kind))},
                    {"purpose", Text(Name(other.purpose))},
                    {"count", other.count},
                    {"payload_bytes", other.payload_bytes}});
  }
  return json;
}

OrderedJson RanksJson(const StepFigures& figures) {
  if (!figures.states_observed) return nullptr;
  OrderedJson json = OrderedJson::array();
  for (const RankFigures& rank : figures.ranks) {
    json.push_back({{"rank", rank.rank},
                    {"parameter_bytes", rank.bytes.parameter},
                    {"gradient_bytes", rank.bytes.gradient},
                    {"optimizer_bytes", rank.bytes.optimizer},
                    {"padding_bytes", rank.bytes.padding},
                    {"scalar_bytes", rank.bytes.scalar},
                    {"steady_bytes", rank.bytes.steady()},
                    {"peak_bytes", rank.peak_bytes ? OrderedJson(*rank.peak_bytes) : nullptr}});
  }
  return json;
}

OrderedJson DevicesJson(const StepFigures& figures) {
  if (figures.devices.empty()) return nullptr;
  const auto known = [](int64_t bytes) { return bytes < 0 ? OrderedJson() : OrderedJson(bytes); };
  OrderedJson json = OrderedJson::array();
  for (const DeviceWitness& device : figures.devices) {
    OrderedJson kernels;
    for (size_t kind = 0; kind < device.collective_kernels.size(); ++kind) {
      kernels[Text(Name(static_cast<CollectiveKind>(kind)))] = device.collective_kernels[kind];
    }
    json.push_back({{"rank", device.rank},
                    {"collective_kernels", kernels},
                    {"driver_steady_bytes", known(device.steady_bytes)},
                    {"driver_peak_bytes", known(device.peak_bytes)}});
  }
  return json;
}

std::string PrintJson(const OrderedJson& document) {
  return document.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace shardproof
