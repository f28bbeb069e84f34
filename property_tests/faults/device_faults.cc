#include "property_tests/faults/device_faults.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "property_tests/faults/catalogue.h"
#include "property_tests/faults/fault_rows.h"
#include "property_tests/faults/fault_tools.h"

namespace shardproof {
namespace {

constexpr char kDecorates[] =
    "decorates communicators, on the host, with memory that is the GPU's here";
constexpr char kOnProvenance[] = "only the provenance engine must find it";

std::vector<std::string> KillersWithValues(const Fault& fault) {
  std::vector<std::string> killers = fault.killers;
  killers.erase(std::remove(killers.begin(), killers.end(), "provenance"), killers.end());
  return killers;
}

bool MustBeFoundBy(const Fault& fault, absl::string_view check) {
  return std::find(fault.killers.begin(), fault.killers.end(), check) != fault.killers.end();
}

// The fault of a row, in a run of layers.
Fault InLayers(const char* row, const char* run) {
  Fault fault = *FindFault(row);
  fault.run = run;
  fault.killers = {"numeric_equivalence"};
  return fault;
}

// The rank's shard is taken to begin an element early, so each parameter moves by its neighbour's
// gradient.
void ShardBeginsEarly(const PlanContext& context, PlanDraft& draft) {
  if (context.rank.value == 0) return;
  for (DraftOp& item : draft.ops) {
    for (UpdateRange& update : item.updates) {
      if (IsKind(item, OpKind::kOptimizerUpdate)) update.gradient.range.first -= 1;
    }
  }
}

}  // namespace

std::string WhyNotOnDevices(const Fault& fault) {
  const absl::StatusOr<RunDescription> run = ParseFaultRun(fault.run);
  if (!run.ok()) return std::string(run.status().message());
  if (fault.apply(*run, PlannedParts(*run)).decorate) return kDecorates;
  if (!fault.benign && KillersWithValues(fault).empty()) return kOnProvenance;
  return "";
}

std::vector<DeviceFault> DeviceFaults() {
  std::vector<DeviceFault> faults;
  for (Fault& fault : AllFaults()) {
    std::string why = WhyNotOnDevices(fault);
    fault.killers = KillersWithValues(fault);
    faults.push_back({std::move(fault), std::move(why)});
  }
  return faults;
}

std::string DeviceFaultsText(const std::vector<DeviceFault>& faults) {
  std::map<std::string, std::vector<std::string>> left_out;  // rows by reason
  size_t out = 0;
  for (const DeviceFault& each : faults) {
    if (each.left_out.empty()) continue;
    ++out;
    left_out[each.left_out].push_back(each.fault.row);
  }
  std::string text =
      absl::StrCat(faults.size(), " faults: ", faults.size() - out, " run, ", out, " left out\n");
  for (const auto& [why, rows] : left_out) {
    absl::StrAppend(&text, "  ", absl::StrJoin(rows, ", "), ": ", why, "\n");
  }
  return text;
}

bool NamesARank(const absl::Status& error) {
  return IsHangOrDisagreement(error) && absl::StrContains(error.message(), "rank ");
}

std::string DeviceComplaint(const FaultOutcome& outcome) {
  const absl::Status& error = outcome.report.error;
  if (IsHangOrDisagreement(error) && !NamesARank(error)) {
    return absl::StrCat(outcome.fault.row, ": the engine's error names no rank: ", error.message());
  }
  if (!outcome.fault.benign && NamesARank(error)) return "";
  FaultOutcome demanded = outcome;
  if (MustBeFoundBy(outcome.fault, "ordering")) demanded.fault.killers = {"ordering"};
  return Complaint(demanded);
}

std::string OtherThanOnCpus(const KillReport& cpu, const KillReport& gpu) {
  if (KilledBy(cpu, "ordering") && KilledBy(gpu, "ordering")) return "";
  if (Killed(cpu) && NamesARank(gpu.error)) return "";
  const bool both_refuse = absl::IsInvalidArgument(cpu.error) && absl::IsInvalidArgument(gpu.error);
  if (!gpu.error.ok() && !both_refuse) return std::string(gpu.error.message());
  if (Killed(cpu) != Killed(gpu)) {
    return absl::StrCat("found by ", Killed(cpu) ? absl::StrJoin(cpu.killers, ", ") : "nothing",
                        " on CPUs and by ",
                        Killed(gpu) ? absl::StrJoin(gpu.killers, ", ") : "nothing", " here");
  }
  const bool one_in_common =
      std::any_of(cpu.killers.begin(), cpu.killers.end(),
                  [&](const std::string& check) { return KilledBy(gpu, check); });
  if (!Killed(cpu) || one_in_common) return "";
  return absl::StrCat("found by ", absl::StrJoin(cpu.killers, ", "), " on CPUs and by others, ",
                      absl::StrJoin(gpu.killers, ", "), ", here");
}

std::vector<Fault> FaultsWithinBounds() {
  std::vector<Fault> faults = {
      InLayers("A2", "model=mlp:6,5,3:bias;mode=zero2;world_size=2;micro_batch_size=3;steps=3"),
      InLayers("A4",
               "model=mlp:6,5,3:bias;mode=zero1_allgather;world_size=2;micro_batch_size=3;steps=3"),
      InLayers("E4",
               "model=mlp:6,5,3:bias;mode=zero1_allgather;world_size=2;micro_batch_size=3;steps=3"),
  };
  Fault offset = InLayers(
      "A4", "model=mlp:6,5,3:bias;mode=zero1_allgather;world_size=2;micro_batch_size=3;steps=3");
  offset.row = "G4";  // the row about wrong offsets of shards
  offset.wrong = "Rank 1 takes its shard of the gradients to begin an element early.";
  offset.apply = EditPlans(ShardBeginsEarly);
  faults.push_back(std::move(offset));
  return faults;
}

}  // namespace shardproof
