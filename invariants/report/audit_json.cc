#include <string>

#include "invariants/report/audit_report.h"
#include "invariants/report/figures_json.h"

namespace shardproof {
namespace {

using Json = OrderedJson;

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
  json["ratio"] = violation.ratio == 0 ? Json() : NumberJson(violation.ratio);
  json["tolerance_share"] =
      violation.tolerance_share == 0 ? Json() : NumberJson(violation.tolerance_share);
  json["likely_cause"] = violation.likely_cause;
  json["message"] = Describe(check, violation);
  json["replay"] = replay;
  return json;
}

Json ChecksJson(const ModeReport& mode, const std::string& replay) {
  Json checks = Json::array();
  for (const CheckResult& check : mode.result.checks) {
    Json json;
    json["name"] = check.name;
    json["verdict"] = Text(Name(check.verdict));
    if (!check.reason.empty()) json["reason"] = check.reason;
    json["violations"] = Json::array();
    for (const Violation& violation : check.violations) {
      json["violations"].push_back(ViolationJson(check, violation, replay));
    }
    json["violation_count"] = check.violation_count;
    checks.push_back(json);
  }
  return checks;
}

Json ModeJson(const ModeReport& mode, const std::string& replay) {
  const CaseResult& result = mode.result;
  const NumericFigures& numeric = result.numeric;
  Json json;
  json["mode"] = Text(Name(mode.run.sharding.mode));
  json["prefetch"] = PrefetchJson(mode.run.sharding);
  json["layout"] = Text(Name(mode.run.sharding.layout));
  json["verdict"] = Text(Name(result.verdict));
  if (!result.refusal.empty()) json["refusal"] = result.refusal;
  json["checks"] = ChecksJson(mode, replay);
  json["factors"] = FactorsJson(result.figures);
  json["collectives"] = CollectivesJson(result.figures);
  json["other_collectives"] = OtherCollectivesJson(result.figures);
  json["ranks"] = RanksJson(result.figures);
  json["devices"] = DevicesJson(result.figures);
  const auto error = [&](double value) { return numeric.observed ? NumberJson(value) : Json(); };
  json["max_abs_parameter_error"] = error(numeric.max_abs_parameter_error);
  json["max_rel_gradient_error"] = error(numeric.max_rel_gradient_error);
  json["max_rel_update_error"] = error(numeric.max_rel_update_error);
  const auto share = [](const std::optional<double>& used) {
    return used ? NumberJson(*used) : Json();
  };
  json["max_gradient_bound_share"] = share(numeric.max_gradient_bound_share);
  json["max_update_bound_share"] = share(numeric.max_update_bound_share);
  return json;
}

}  // namespace

std::string AuditJson(const AuditReport& report) {
  const RunDescription& run = report.modes[0].run;
  Json json;
  json["schema"] = "shardproof.audit/1";
  json["model"] = ModelJson(run.model);
  json["world_size"] = run.sharding.world_size.value;
  if (report.observation.empty()) {
    json["engine"] = Text(Name(report.engine));
  } else {
    json["observation"] = report.observation;
  }
  json["modes"] = Json::array();
  for (const ModeReport& mode : report.modes) {
    json["modes"].push_back(ModeJson(mode, ReplayLine(report, mode)));
  }
  return PrintJson(json);
}

}  // namespace shardproof
