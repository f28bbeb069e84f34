#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "invariants/closed_forms/closed_forms.h"
#include "invariants/report/audit_report.h"
#include "invariants/report/failure_text.h"
#include "invariants/report/report_text.h"
#include "invariants/report/text_table.h"

namespace shardproof {
namespace {

// The bytes of all ranks: one figure where they look equal, else least..most.
template <typename Get>
std::string OverRanks(const StepFigures& figures, Get get) {
  if (figures.ranks.empty()) return "-";
  const auto [least, most] = std::minmax_element(
      figures.ranks.begin(), figures.ranks.end(),
      [&](const RankFigures& a, const RankFigures& b) { return get(a) < get(b); });
  const std::string from = FormatBytes(get(*least));
  const std::string to = FormatBytes(get(*most));
  return from == to ? to : absl::StrCat(from, "..", to);
}

std::string Peak(const StepFigures& figures) {
  if (!figures.events_observed) return "-";
  return OverRanks(figures, [](const RankFigures& rank) { return rank.peak_bytes.value_or(0); });
}

std::string Factors(const StepFigures& figures) {
  if (!figures.states_observed) return "-";
  return absl::StrCat(FormatFactor(figures.parameter_factor), "/",
                      FormatFactor(figures.gradient_factor), "/",
                      FormatFactor(figures.optimizer_factor));
}

std::string ParameterError(const NumericFigures& numeric) {
  if (!numeric.observed) return "-";
  if (numeric.max_abs_parameter_error == 0) return "0";
  return absl::StrFormat("%.2g", numeric.max_abs_parameter_error);
}

std::vector<std::string> StateRow(const ModeReport& mode) {
  const StepFigures& figures = mode.result.figures;
  const auto bytes = [&](int64_t StateBytes::*member) {
    return OverRanks(figures, [=](const RankFigures& rank) { return rank.bytes.*member; });
  };
  return {ModeRowName(mode.run.sharding),
          mode.run.sharding.mode == Mode::kReplicated ? "-"
                                                      : std::string(Name(mode.run.sharding.layout)),
          Factors(figures),
          bytes(&StateBytes::parameter),
          bytes(&StateBytes::gradient),
          bytes(&StateBytes::optimizer),
          bytes(&StateBytes::padding),
          OverRanks(figures, [](const RankFigures& rank) { return rank.bytes.steady(); }),
          Peak(figures),
          ParameterError(mode.result.numeric),
          std::string(Name(mode.result.verdict))};
}

std::string StateTable(const AuditReport& report) {
  TextTable table({"mode", "layout", "P/G/O", "parameters", "gradients", "optimizer", "padding",
                   "steady", "peak", "max|dP|", "verdict"});
  for (const ModeReport& mode : report.modes) table.Add(StateRow(mode));
  return absl::StrCat(
      "Model state of a rank after the last step; least..most where ranks differ.\n"
      "P/G/O: parameters, gradients and optimizer of all ranks over the model's. steady: all "
      "state with padding and step counters; peak: most at once in the step.\n"
      "max|dP|: largest error of a parameter against replicated training.\n\n",
      table.Print());
}

std::vector<std::string> CollectiveRow(const ModeReport& mode) {
  std::vector<std::string> cells = {ModeRowName(mode.run.sharding)};
  const StepFigures& figures = mode.result.figures;
  if (!figures.events_observed) {
    cells.resize(9, "-");
    return cells;
  }
  CollectiveFigures total;
  for (const CollectiveFigures* kind :
       {&figures.all_reduce, &figures.all_gather_forward, &figures.all_gather_backward,
        &figures.all_gather_optimizer, &figures.reduce_scatter, &figures.broadcast}) {
    cells.push_back(kind->count == 0 ? "." : WithSeparators(kind->count));
    total.payload_bytes += kind->payload_bytes;
    total.bus_bytes += kind->bus_bytes;
  }
  cells.push_back(FormatBytes(total.payload_bytes));
  cells.push_back(FormatBytes(total.bus_bytes));
  return cells;
}

std::string CollectiveTable(const AuditReport& report) {
  TextTable table({"mode", "all-reduce", "all-gather fwd", "all-gather bwd", "all-gather opt",
                   "reduce-scatter", "broadcast", "payload", "bus"});
  std::string others;
  for (const ModeReport& mode : report.modes) {
    table.Add(CollectiveRow(mode));
    for (const OtherCollective& other : mode.result.figures.others) {
      absl::StrAppend(&others, ModeRowName(mode.run.sharding), " also: ", other.count, " ",
                      Name(other.kind), " for ", Name(other.purpose), ", ",
                      FormatBytes(other.payload_bytes), "\n");
    }
  }
  return absl::StrCat(
      "Collectives of rank 0 in the last step, by phase (forward, backward, optimizer). payload: "
      "bytes of the full padded buffers; bus: payload x bus factor.\n\n",
      table.Print(), others);
}

// What others saw of the GPUs. One figure where the ranks agree, else least..most; "-" where
// nobody watched.
template <typename Get>
std::string OverDevices(const StepFigures& figures, Get get) {
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t most = -1;
  for (const DeviceWitness& device : figures.devices) {
    least = std::min(least, get(device));
    most = std::max(most, get(device));
  }
  if (most < 0 || least < 0) return "-";
  return least == most ? absl::StrCat(most) : absl::StrCat(least, "..", most);
}

std::string DriverMib(const StepFigures& figures, int64_t DeviceWitness::*bytes) {
  return OverDevices(figures, [=](const DeviceWitness& device) {
    return device.*bytes < 0 ? int64_t{-1} : device.*bytes >> 20;
  });
}

std::string BoundShare(const std::optional<double>& share) {
  return share ? absl::StrFormat("%.2f", *share) : "-";
}

std::vector<std::string> DeviceRow(const ModeReport& mode) {
  const StepFigures& figures = mode.result.figures;
  std::vector<std::string> cells = {ModeRowName(mode.run.sharding)};
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                    CollectiveKind::kReduceScatter, CollectiveKind::kBroadcast}) {
    cells.push_back(OverDevices(figures, [&](const DeviceWitness& device) {
      const size_t place = static_cast<size_t>(kind);
      return place < device.collective_kernels.size() ? device.collective_kernels[place]
                                                      : int64_t{-1};
    }));
  }
  cells.push_back(DriverMib(figures, &DeviceWitness::steady_bytes));
  cells.push_back(DriverMib(figures, &DeviceWitness::peak_bytes));
  cells.push_back(BoundShare(mode.result.numeric.max_gradient_bound_share));
  cells.push_back(BoundShare(mode.result.numeric.max_update_bound_share));
  return cells;
}

std::string DeviceTable(const AuditReport& report) {
  const bool watched =
      std::any_of(report.modes.begin(), report.modes.end(),
                  [](const ModeReport& mode) { return !mode.result.figures.devices.empty(); });
  if (!watched) return "";
  TextTable table({"mode", "all-reduce", "all-gather", "reduce-scatter", "broadcast", "steady MiB",
                   "peak MiB", "gradient/bound", "update/bound"});
  for (const ModeReport& mode : report.modes) table.Add(DeviceRow(mode));
  return absl::StrCat(
      "\nOn the GPUs, in the last step: kernels of collectives that CUPTI recorded, memory that "
      "the "
      "driver gave (all buffers,\nactivations too). Where sums have no fixed order: the largest "
      "share of its bound that an element used.\n\n",
      table.Print());
}

// Every mode that ran has the same checks.
std::vector<std::string> CheckNames(const AuditReport& report) {
  std::vector<std::string> names;
  for (const ModeReport& mode : report.modes) {
    if (!names.empty()) break;
    for (const CheckResult& check : mode.result.checks) names.push_back(check.name);
  }
  return names;
}

const CheckResult* FindCheck(const ModeReport& mode, absl::string_view name) {
  for (const CheckResult& check : mode.result.checks) {
    if (check.name == name) return &check;
  }
  return nullptr;
}

std::string CheckTable(const AuditReport& report) {
  const std::vector<std::string> names = CheckNames(report);
  if (names.empty()) return "";
  std::vector<std::string> head = {"mode"};
  head.insert(head.end(), names.begin(), names.end());
  TextTable table(head);
  for (const ModeReport& mode : report.modes) {
    std::vector<std::string> cells = {ModeRowName(mode.run.sharding)};
    for (const std::string& name : names) {
      const CheckResult* const check = FindCheck(mode, name);
      cells.push_back(check == nullptr ? "-" : std::string(Name(check->verdict)));
    }
    table.Add(cells);
  }
  return absl::StrCat("\n", table.Print());
}

// Why a check saw nothing, or took its expectation from the evidence: once for all modes that
// share the reason, which are most.
std::string Reasons(const AuditReport& report) {
  struct Reason {
    std::string text;
    std::vector<std::string> modes;
  };
  std::vector<Reason> reasons;
  for (const std::string& name : CheckNames(report)) {
    for (const ModeReport& mode : report.modes) {
      const CheckResult* const check = FindCheck(mode, name);
      if (check == nullptr || check->reason.empty()) continue;
      const std::string text = absl::StrCat(name, " ", Name(check->verdict), ": ", check->reason);
      auto same = std::find_if(reasons.begin(), reasons.end(),
                               [&](const Reason& reason) { return reason.text == text; });
      if (same == reasons.end()) same = reasons.insert(reasons.end(), Reason{text, {}});
      same->modes.push_back(ModeRowName(mode.run.sharding));
    }
  }
  std::string text;
  for (const Reason& reason : reasons) {
    const bool everywhere = reason.modes.size() == report.modes.size();
    absl::StrAppend(&text, "\n", reason.text,
                    everywhere ? "" : absl::StrCat(" (", absl::StrJoin(reason.modes, ", "), ")"));
  }
  return text.empty() ? "" : absl::StrCat(text, "\n");
}

std::string Refusals(const AuditReport& report) {
  std::string text;
  for (const ModeReport& mode : report.modes) {
    if (mode.result.verdict != Verdict::kRefused) continue;
    absl::StrAppend(&text, "\n", ModeRowName(mode.run.sharding), " refused: ", mode.result.refusal,
                    "\n");
  }
  return text;
}

std::string Failures(const AuditReport& report) {
  std::string text;
  for (const ModeReport& mode : report.modes) {
    for (const CheckResult& check : mode.result.checks) {
      if (check.verdict != Verdict::kFail) continue;
      absl::StrAppend(&text, "\n", ModeRowName(mode.run.sharding), " FAILS ", check.name, ", ",
                      check.violation_count,
                      check.violation_count == 1 ? " violation" : " violations", "\n");
      absl::StrAppend(&text, FailureText(check), "\n", ReplayLine(report, mode), "\n");
    }
  }
  return text;
}

std::string Heading(const AuditReport& report) {
  const RunDescription& run = report.modes[0].run;
  if (report.observation.empty()) {
    return absl::StrCat("shardproof audit of ", DescribeRun(run, Name(report.engine)));
  }
  return absl::StrCat("shardproof check of ", report.observation,
                      " against the closed forms of its mode and replicated (unsharded) training\n",
                      DescribeRun(run, ""));
}

bool LacksEvidence(const ModeReport& mode, const std::string& required) {
  if (mode.result.verdict == Verdict::kRefused) return false;
  const CheckResult* const check = FindCheck(mode, required);
  return check == nullptr || check->verdict == Verdict::kNotObserved;
}

// The exit status alone would leave a reader of passes in the dark.
std::string MissingEvidence(const AuditReport& report) {
  std::string text;
  for (const std::string& name : report.required) {
    std::vector<std::string> modes;
    for (const ModeReport& mode : report.modes) {
      if (LacksEvidence(mode, name)) modes.push_back(ModeRowName(mode.run.sharding));
    }
    if (modes.empty()) continue;
    absl::StrAppend(&text, "\nrequired and not observed: ", name, " (", absl::StrJoin(modes, ", "),
                    ")\n");
  }
  return text;
}

}  // namespace

std::string ReplayLine(const AuditReport& report, const ModeReport& mode) {
  return report.observation.empty() ? ReplayLine(mode.run, report.engine)
                                    : ReplayLine(report.observation);
}

std::string AuditTable(const AuditReport& report) {
  return absl::StrCat(Heading(report), "\n\n", StateTable(report), "\n", CollectiveTable(report),
                      DeviceTable(report), CheckTable(report), Reasons(report), Refusals(report),
                      MissingEvidence(report), Failures(report));
}

int AuditExitCode(const AuditReport& report) {
  bool passes = false;
  for (const ModeReport& mode : report.modes) {
    if (mode.result.verdict == Verdict::kRefused) continue;
    if (mode.result.verdict == Verdict::kFail) return 1;
    for (const std::string& name : report.required) {
      if (LacksEvidence(mode, name)) return 1;
    }
    passes = true;
  }
  return passes ? 0 : 2;
}

namespace {

std::string ItemName(const RunDescription& run, const ExpectedItem& item) {
  if (item.kind == EventKind::kCompute) return "compute";
  if (item.kind == EventKind::kOptimizer) {
    return absl::StrCat(Name(run.optimizer.kind), " update");
  }
  return std::string(Name(item.collective));
}

std::string ItemOwner(const RunDescription& run, const ExpectedItem& item) {
  if (item.tensor >= 0) return run.model.tensors[item.tensor].name;
  if (item.unit >= 0) return run.model.units[item.unit].name;
  if (item.bucket >= 0) return absl::StrCat("bucket ", item.bucket);
  // Not the mode's own, so that its purpose is not to be seen from the mode.
  if (item.purpose == Purpose::kClipNorm) return std::string(Name(item.purpose));
  return "";
}

}  // namespace

std::string ExplainStep(const RunDescription& run) {
  for (const absl::string_view missing : {NoStateRule(run), NoStepRule(run)}) {
    if (missing.empty()) continue;
    return absl::StrCat("expected step of ", ModeRowName(run.sharding), ": not defined: ", missing,
                        "\n");
  }
  TextTable table({"#", "phase", "micro-batch", "operation", "of", "elements", "payload", "live"});
  const StateBytes state = ExpectedState(run, Rank{0});
  int64_t most_live = 0;
  const std::vector<ExpectedItem> items = ExpectedSequence(run);
  for (const ExpectedItem& item : items) most_live = std::max(most_live, item.live_bytes);
  // Moments and counters live always; the peak says how much that is on rank 0.
  const int64_t always = ExpectedPeakBytes(run, Rank{0}) - most_live;
  for (size_t i = 0; i < items.size(); ++i) {
    const ExpectedItem& item = items[i];
    const bool moves = item.kind == EventKind::kCollective;
    table.Add({absl::StrCat(i), std::string(Name(item.phase)),
               item.micro_batch < 0 ? "" : absl::StrCat(item.micro_batch), ItemName(run, item),
               ItemOwner(run, item), moves ? WithSeparators(item.elements) : "",
               moves ? FormatBytes(item.elements * DtypeBytes(item.dtype)) : "",
               FormatBytes(item.live_bytes + always)});
  }
  return absl::StrCat("expected step of ", ModeRowName(run.sharding), " on rank 0 of ",
                      run.sharding.world_size.value, " (live: model state; steady ",
                      FormatBytes(state.steady()), ", peak ", FormatBytes(most_live + always),
                      ")\n", table.Print(), "\n");
}

}  // namespace shardproof
