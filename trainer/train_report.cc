#include "trainer/train_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "invariants/report/figures_json.h"
#include "invariants/report/report_text.h"
#include "invariants/report/text_table.h"
#include "invariants/run_description/parse.h"

namespace shardproof {
namespace {

// Ranks that hold and peak alike, by first rank. Step counters can make like ranks alternate.
std::vector<std::vector<const RankFigures*>> LikeRanks(const StepFigures& figures) {
  std::vector<std::vector<const RankFigures*>> classes;
  for (const RankFigures& rank : figures.ranks) {
    const auto same = std::find_if(classes.begin(), classes.end(), [&](const auto& likes) {
      return likes[0]->bytes == rank.bytes && likes[0]->peak_bytes == rank.peak_bytes;
    });
    if (same == classes.end()) {
      classes.push_back({&rank});
    } else {
      same->push_back(&rank);
    }
  }
  return classes;
}

// "0-3", "0-3, 5, 8-11, ... (51 ranks)".
std::string RankSpans(const std::vector<const RankFigures*>& ranks) {
  constexpr int kSpans = 3;
  std::string text;
  int spans = 0;
  for (size_t first = 0; first < ranks.size(); ++spans) {
    if (spans == kSpans) return absl::StrCat(text, ", ... (", ranks.size(), " ranks)");
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1]->rank == ranks[last]->rank + 1) ++last;
    absl::StrAppend(&text, spans == 0 ? "" : ", ", ranks[first]->rank);
    if (last > first) absl::StrAppend(&text, "-", ranks[last]->rank);
    first = last + 1;
  }
  return text;
}

std::string StateTable(const StepFigures& figures) {
  TextTable table(
      {"ranks", "parameters", "gradients", "optimizer", "padding", "scalars", "steady", "peak"});
  for (const std::vector<const RankFigures*>& likes : LikeRanks(figures)) {
    const StateBytes& bytes = likes[0]->bytes;
    table.Add({RankSpans(likes), FormatBytes(bytes.parameter), FormatBytes(bytes.gradient),
               FormatBytes(bytes.optimizer), FormatBytes(bytes.padding), FormatBytes(bytes.scalar),
               FormatBytes(bytes.steady()),
               likes[0]->peak_bytes ? FormatBytes(*likes[0]->peak_bytes) : "-"});
  }
  return absl::StrCat("model state of each rank after the last step; peak: most at once in it\n",
                      table.Print(), "all ranks over the model: parameters ",
                      FormatFactor(figures.parameter_factor), ", gradients ",
                      FormatFactor(figures.gradient_factor), ", optimizer ",
                      FormatFactor(figures.optimizer_factor), "\n");
}

std::string CollectiveTable(const StepFigures& figures) {
  const struct {
    const char* kind;
    const char* phase;
    const CollectiveFigures& figures;
  } rows[] = {{"all_reduce", "backward", figures.all_reduce},
              {"all_gather", "forward", figures.all_gather_forward},
              {"all_gather", "backward", figures.all_gather_backward},
              {"all_gather", "optimizer", figures.all_gather_optimizer},
              {"reduce_scatter", "backward", figures.reduce_scatter},
              {"broadcast", "optimizer", figures.broadcast}};
  TextTable table({"collective", "phase", "count", "payload", "bus"});
  CollectiveFigures total;
  for (const auto& row : rows) {
    if (row.figures.count == 0) continue;
    table.Add({row.kind, row.phase, WithSeparators(row.figures.count),
               FormatBytes(row.figures.payload_bytes), FormatBytes(row.figures.bus_bytes)});
    total.count += row.figures.count;
    total.payload_bytes += row.figures.payload_bytes;
    total.bus_bytes += row.figures.bus_bytes;
  }
  table.Add({"total", "", WithSeparators(total.count), FormatBytes(total.payload_bytes),
             FormatBytes(total.bus_bytes)});
  return absl::StrCat(
      "collectives of one rank in the last step; payload: full padded buffers; bus: payload x bus "
      "factor\n",
      table.Print());
}

}  // namespace

std::string TrainHeading(const RunDescription& run, EngineKind engine) {
  const bool cuts_tensors = run.sharding.mode != Mode::kReplicated;
  return absl::StrCat("zero_train in ", ModeRowName(run.sharding),
                      cuts_tensors ? absl::StrCat(" (layout ", Name(run.sharding.layout), ")") : "",
                      "\n", DescribeRun(run, Name(engine)), "\n\n",
                      MovesValues(engine) ? "    step  loss\n"
                                          : absl::StrCat("no losses: the ", Name(engine),
                                                         " engine moves no values\n"));
}

std::string LossLine(int64_t step, double loss) {
  return absl::StrFormat("%8d  %.9g\n", step, loss);
}

std::string TrainTables(const StepFigures& last_step) {
  // Probes and imported models have no layers to compute.
  const std::string activations =
      last_step.activation_peak_bytes == 0
          ? "activations: none, this model has no layers to compute\n"
          : absl::StrCat("activations of rank 0 (inputs and gradients of activations included): ",
                         FormatBytes(last_step.activation_peak_bytes), " at most\n");
  return absl::StrCat("\n", StateTable(last_step), "\n", CollectiveTable(last_step), "\n",
                      activations);
}

std::string TrainJson(const RunDescription& run, absl::string_view engine,
                      const std::vector<std::optional<double>>& losses,
                      const StepFigures& last_step) {
  OrderedJson json;
  json["schema"] = "shardproof.train/1";
  json["model"] = ModelJson(run.model);
  json["world_size"] = run.sharding.world_size.value;
  json["engine"] = std::string(engine);
  json["mode"] = std::string(Name(run.sharding.mode));
  json["prefetch"] = PrefetchJson(run.sharding);
  json["layout"] = std::string(Name(run.sharding.layout));
  json["run"] = PrintRun(run);
  json["steps"] = OrderedJson::array();
  for (size_t step = 0; step < losses.size(); ++step) {
    json["steps"].push_back(
        {{"step", step}, {"loss", losses[step] ? NumberJson(*losses[step]) : OrderedJson()}});
  }
  json["factors"] = FactorsJson(last_step);
  json["collectives"] = CollectivesJson(last_step);
  json["other_collectives"] = OtherCollectivesJson(last_step);
  json["ranks"] = RanksJson(last_step);
  json["activation_peak_bytes"] = last_step.activation_peak_bytes;
  return PrintJson(json);
}

}  // namespace shardproof
