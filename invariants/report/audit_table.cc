#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "invariants/closed_forms/closed_forms.h"
#include "invariants/report/audit_report.h"
#include "invariants/report/report_text.h"
#include "invariants/report/text_table.h"

namespace shardproof {
namespace {

// The largest over ranks; with the smallest when they differ.
template <typename Get>
std::string OverRanks(const StepFigures& figures, Get get) {
  int64_t least = INT64_MAX;
  int64_t most = 0;
  for (const RankFigures& rank : figures.ranks) {
    least = std::min<int64_t>(least, get(rank));
    most = std::max<int64_t>(most, get(rank));
  }
  if (least == most) return FormatBytes(most);
  return absl::StrCat(FormatBytes(least), "..", FormatBytes(most));
}

std::string PerRank(const StepFigures& figures) {
  return absl::StrCat(
      OverRanks(figures, [](const RankFigures& rank) { return rank.bytes.parameter; }), " / ",
      OverRanks(figures, [](const RankFigures& rank) { return rank.bytes.gradient; }), " / ",
      OverRanks(figures, [](const RankFigures& rank) { return rank.bytes.optimizer; }));
}

std::string Error(const NumericFigures& numeric, double error) {
  if (!numeric.observed) return "-";
  return error == 0 ? "0" : absl::StrFormat("%.2g", error);
}

const CollectiveFigures* const* Kinds(const StepFigures& figures,
                                      const CollectiveFigures* (&all)[6]) {
  all[0] = &figures.all_reduce;
  all[1] = &figures.all_gather_forward;
  all[2] = &figures.all_gather_backward;
  all[3] = &figures.all_gather_optimizer;
  all[4] = &figures.reduce_scatter;
  all[5] = &figures.broadcast;
  return all;
}

std::string LayoutName(const ShardingDescription& sharding) {
  return sharding.mode == Mode::kReplicated ? "-" : std::string(Name(sharding.layout));
}

std::vector<std::string> Row(const ModeReport& mode) {
  std::vector<std::string> cells = {ModeRowName(mode.run.sharding), LayoutName(mode.run.sharding)};
  if (mode.result.verdict == Verdict::kRefused) {
    cells.resize(16, "-");
    cells.push_back("refused");
    return cells;
  }
  const StepFigures& figures = mode.result.figures;
  cells.push_back(absl::StrCat(FormatFactor(figures.parameter_factor), "/",
                               FormatFactor(figures.gradient_factor), "/",
                               FormatFactor(figures.optimizer_factor)));
  cells.push_back(PerRank(figures));
  cells.push_back(OverRanks(figures, [](const RankFigures& rank) { return rank.bytes.padding; }));
  int64_t payload_bytes = 0;
  int64_t bus_bytes = 0;
  const CollectiveFigures* all[6];
  Kinds(figures, all);
  for (const CollectiveFigures* kind : all) {
    cells.push_back(kind->count == 0 ? "." : absl::StrCat(kind->count));
    payload_bytes += kind->payload_bytes;
    bus_bytes += kind->bus_bytes;
  }
  cells.push_back(FormatBytes(payload_bytes));
  cells.push_back(FormatBytes(bus_bytes));
  cells.push_back(OverRanks(figures, [](const RankFigures& rank) { return rank.bytes.steady(); }));
  cells.push_back(
      OverRanks(figures, [](const RankFigures& rank) { return rank.peak_bytes.value_or(0); }));
  cells.push_back(Error(mode.result.numeric, mode.result.numeric.max_abs_parameter_error));
  cells.push_back(std::string(Name(mode.result.verdict)));
  return cells;
}

constexpr char kLegend[] =
    "P/G/O: parameter, gradient, optimizer bytes of all ranks over the model's; per rank the same "
    "in bytes, and pad(ding).\n"
    "AR all-reduce, AGf AGb AGo all-gather in forward, backward, optimizer, RS reduce-scatter, BC "
    "broadcast: calls of one rank in one steady step.\n"
    "payload: bytes of their full buffers; bus: payload x bus factor. steady and peak: model "
    "state of a rank. max|dP|: largest parameter error against replicated training.\n\n";

std::string CheckMatrix(const AuditReport& report) {
  std::vector<std::string> head = {"check"};
  for (const ModeReport& mode : report.modes) head.push_back(ModeRowName(mode.run.sharding));
  TextTable table(head);
  std::vector<std::string> names;
  for (const ModeReport& mode : report.modes) {
    if (names.empty()) {
      for (const CheckResult& check : mode.result.checks) names.push_back(check.name);
    }
  }
  for (const std::string& name : names) {
    std::vector<std::string> cells = {name};
    for (const ModeReport& mode : report.modes) {
      std::string cell = "-";
      for (const CheckResult& check : mode.result.checks) {
        if (check.name == name) cell = std::string(Name(check.verdict));
      }
      cells.push_back(cell);
    }
    table.Add(cells);
  }
  return table.Print();
}

std::string Details(const AuditReport& report) {
  std::string text;
  for (const ModeReport& mode : report.modes) {
    const std::string name = ModeRowName(mode.run.sharding);
    if (mode.result.verdict == Verdict::kRefused) {
      absl::StrAppend(&text, "\n", name, " refused: ", mode.result.refusal, "\n");
    }
    for (const CheckResult& check : mode.result.checks) {
      if (check.verdict == Verdict::kNotObserved || check.verdict == Verdict::kInferred) {
        absl::StrAppend(&text, "\n", name, " ", check.name, ": ", Name(check.verdict), ": ",
                        check.reason, "\n");
      }
      if (check.verdict != Verdict::kFail) continue;
      absl::StrAppend(&text, "\n", name, " FAILS ", check.name, ", ", check.violation_count,
                      check.violation_count == 1 ? " violation" : " violations", "\n");
      for (const Violation& violation : check.violations) {
        absl::StrAppend(&text, Describe(check, violation), "\n");
      }
      absl::StrAppend(&text, ReplayLine(mode.run, report.engine), "\n");
    }
  }
  return text;
}

}  // namespace

std::string AuditTable(const AuditReport& report) {
  TextTable table({"mode", "layout", "P/G/O", "per rank P / G / O", "pad", "AR", "AGf", "AGb",
                   "AGo", "RS", "BC", "payload", "bus", "steady", "peak", "max|dP|", "verdict"});
  for (const ModeReport& mode : report.modes) table.Add(Row(mode));
  return absl::StrCat(Heading(report), kLegend, table.Print(), "\n", CheckMatrix(report),
                      Details(report));
}

int AuditExitCode(const AuditReport& report) {
  bool passes = false;
  for (const ModeReport& mode : report.modes) {
    if (mode.result.verdict == Verdict::kFail) return 1;
    if (mode.result.verdict == Verdict::kPass) passes = true;
    for (const CheckResult& check : mode.result.checks) {
      const bool required = std::find(report.required.begin(), report.required.end(), check.name) !=
                            report.required.end();
      if (required && check.verdict == Verdict::kNotObserved) return 1;
    }
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
  return "";
}

}  // namespace

std::string ExplainStep(const RunDescription& run) {
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
