#include <cmath>
#include <string>

#include "invariants/report/audit_report.h"
#include "nlohmann/json.hpp"

namespace shardproof {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinities, and a script must not mistake them for "not observed".
Json Number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

std::string Text(absl::string_view text) { return std::string(text); }

Json ViolationJson(const CheckResult& check, const Violation& violation,
                   const std::string& replay) {
  Json json;
  json["rule"] = violation.rule;
  json["rank"] = violation.rank < 0 ? Json() : Json(violation.rank);
  json["step"] = violation.step < 0 ? Json() : Json(violation.step);
  json["unit"] = violation.unit.empty() ? Json() : Json(violation.unit);
  json["tensor"] = violation.tensor.empty() ? Json() : Json(violation.tensor);
  json["element"] = violation.element < 0 ? Json() : Json(violation.element);
  json["event"] = violation.event < 0 ? Json() : Json(violation.event);
  json["expected"] = violation.expected;
  json["actual"] = violation.actual;
  json["ratio"] = violation.ratio == 0 ? Json() : Number(violation.ratio);
  json["tolerance_share"] =
      violation.tolerance_share == 0 ? Json() : Number(violation.tolerance_share);
  json["likely_cause"] = violation.likely_cause;
  json["message"] = Describe(check, violation);
  json["replay"] = replay;
  return json;
}

Json ChecksJson(const ModeReport& mode, EngineKind engine) {
  Json checks = Json::array();
  for (const CheckResult& check : mode.result.checks) {
    Json json;
    json["name"] = check.name;
    json["verdict"] = Text(Name(check.verdict));
    if (!check.reason.empty()) json["reason"] = check.reason;
    json["violations"] = Json::array();
    for (const Violation& violation : check.violations) {
      json["violations"].push_back(ViolationJson(check, violation, ReplayLine(mode.run, engine)));
    }
    json["violation_count"] = check.violation_count;
    checks.push_back(json);
  }
  return checks;
}

Json CollectiveJson(const CollectiveFigures& figures) {
  return {{"count", figures.count},
          {"payload_bytes", figures.payload_bytes},
          {"bus_bytes", figures.bus_bytes}};
}

Json CollectivesJson(const StepFigures& figures) {
  if (!figures.events_observed) return nullptr;
  Json json;
  json["all_reduce"] = CollectiveJson(figures.all_reduce);
  json["all_gather_forward"] = CollectiveJson(figures.all_gather_forward);
  json["all_gather_backward"] = CollectiveJson(figures.all_gather_backward);
  json["all_gather_optimizer"] = CollectiveJson(figures.all_gather_optimizer);
  json["reduce_scatter"] = CollectiveJson(figures.reduce_scatter);
  json["broadcast"] = CollectiveJson(figures.broadcast);
  return json;
}

Json OthersJson(const StepFigures& figures) {
  if (!figures.events_observed) return nullptr;
  Json json = Json::array();
  for (const OtherCollective& other : figures.others) {
    json.push_back({{"kind", Text(Name(other.kind))},
                    {"purpose", Text(Name(other.purpose))},
                    {"count", other.count},
                    {"payload_bytes", other.payload_bytes}});
  }
  return json;
}

Json RanksJson(const StepFigures& figures) {
  if (!figures.states_observed) return nullptr;
  Json json = Json::array();
  for (const RankFigures& rank : figures.ranks) {
    json.push_back({{"rank", rank.rank},
                    {"parameter_bytes", rank.bytes.parameter},
                    {"gradient_bytes", rank.bytes.gradient},
                    {"optimizer_bytes", rank.bytes.optimizer},
                    {"padding_bytes", rank.bytes.padding},
                    {"scalar_bytes", rank.bytes.scalar},
                    {"steady_bytes", rank.bytes.steady()},
                    {"peak_bytes", rank.peak_bytes ? Json(*rank.peak_bytes) : Json()}});
  }
  return json;
}

Json ModeJson(const ModeReport& mode, EngineKind engine) {
  const CaseResult& result = mode.result;
  const StepFigures& figures = result.figures;
  const bool full_shard = mode.run.sharding.mode == Mode::kFullShard;
  Json json;
  json["mode"] = Text(Name(mode.run.sharding.mode));
  json["prefetch"] = full_shard ? Json(Text(Name(mode.run.sharding.prefetch))) : Json();
  json["layout"] = Text(Name(mode.run.sharding.layout));
  json["verdict"] = Text(Name(result.verdict));
  if (!result.refusal.empty()) json["refusal"] = result.refusal;
  json["checks"] = ChecksJson(mode, engine);
  json["factors"] = nullptr;
  if (figures.states_observed) {
    json["factors"] = {{"parameter", figures.parameter_factor},
                       {"gradient", figures.gradient_factor},
                       {"optimizer", figures.optimizer_factor}};
  }
  json["collectives"] = CollectivesJson(figures);
  json["other_collectives"] = OthersJson(figures);
  json["ranks"] = RanksJson(figures);
  const bool compared = result.numeric.observed;
  json["max_abs_parameter_error"] =
      compared ? Number(result.numeric.max_abs_parameter_error) : Json();
  json["max_rel_gradient_error"] =
      compared ? Number(result.numeric.max_rel_gradient_error) : Json();
  json["max_rel_update_error"] = compared ? Number(result.numeric.max_rel_update_error) : Json();
  return json;
}

}  // namespace

std::string AuditJson(const AuditReport& report) {
  const RunDescription& run = report.modes[0].run;
  Json json;
  json["schema"] = "shardproof.audit/1";
  json["model"] = {{"name", run.model.name},
                   {"parameters", ParameterElements(run.model)},
                   {"logical_bytes", ParameterElements(run.model) * DtypeBytes(Dtype::kFloat32)},
                   {"units", run.model.units.size()}};
  json["world_size"] = run.sharding.world_size.value;
  json["engine"] = Text(Name(report.engine));
  json["modes"] = Json::array();
  for (const ModeReport& mode : report.modes)
    json["modes"].push_back(ModeJson(mode, report.engine));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace shardproof
