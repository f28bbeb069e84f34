#include "trainer/train_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "invariants/report/figures_json.h"
#include "invariants/report/report_text.h"
#include "invariants/report/text_table.h"
#include "invariants/run_description/parse.h"

namespace shardproof {
namespace {

std::string RankSpan(int32_t first, int32_t last) {
  return first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
}

std::string StateTable(const StepFigures& figures) {
  TextTable table(
      {"rank", "parameters", "gradients", "optimizer", "padding", "scalars", "steady", "peak"});
  const std::vector<RankFigures>& ranks = figures.ranks;
  for (size_t first = 0; first < ranks.size();) {
    size_t end = first + 1;
    while (end < ranks.size() && ranks[end].bytes == ranks[first].bytes &&
           ranks[end].peak_bytes == ranks[first].peak_bytes) {
      ++end;
    }
    const RankFigures& rank = ranks[first];
    table.Add({RankSpan(rank.rank, ranks[end - 1].rank), FormatBytes(rank.bytes.parameter),
               FormatBytes(rank.bytes.gradient), FormatBytes(rank.bytes.optimizer),
               FormatBytes(rank.bytes.padding), FormatBytes(rank.bytes.scalar),
               FormatBytes(rank.bytes.steady()),
               rank.peak_bytes ? FormatBytes(*rank.peak_bytes) : "-"});
    first = end;
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

std::string TrainHeading(const RunDescription& run, absl::string_view engine) {
  const bool cuts_tensors = run.sharding.mode != Mode::kReplicated;
  return absl::StrCat("zero_train in ", ModeRowName(run.sharding),
                      cuts_tensors ? absl::StrCat(" (layout ", Name(run.sharding.layout), ")") : "",
                      "\n", DescribeRun(run, engine), "\n\n",
                      engine == "accounting" ? "no losses: the accounting engine moves no values\n"
                                             : "    step  loss\n");
}

std::string LossLine(int64_t step, double loss) {
  return absl::StrFormat("%8d  %.9g\n", step, loss);
}

std::string TrainTables(const StepFigures& last_step) {
  return absl::StrCat("\n", StateTable(last_step), "\n", CollectiveTable(last_step),
                      "\nactivations of rank 0 (inputs and gradients of activations included): ",
                      FormatBytes(last_step.activation_peak_bytes), " at most\n");
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
