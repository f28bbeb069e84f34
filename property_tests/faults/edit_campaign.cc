#include "property_tests/faults/edit_campaign.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "invariants/run_description/status_macros.h"
#include "property_tests/faults/edit_equivalence.h"

namespace shardproof {
namespace {

std::vector<StepPlan> PlansOf(const RunDescription& run, const EngineParts& parts) {
  std::vector<StepPlan> plans;
  for (int32_t rank = 0; rank < run.sharding.world_size.value; ++rank) {
    plans.push_back(parts.plan(run, parts.placement, Rank{rank}, kEditedStep));
  }
  return plans;
}

// Whether an entry is about one change, "op * scale unit 2: drop, rank 2". With * for the change
// it would excuse those that are generated later, too, which nobody has looked at.
bool NamesItsChange(absl::string_view edit) {
  const size_t colon = edit.find(": ");
  if (colon == absl::string_view::npos) return false;
  const absl::string_view change = edit.substr(colon, edit.rfind(", ") - colon);
  return !absl::StrContains(change, '*');
}

// What an edit that nothing killed is.
void JudgeSurvivor(const RunDescription& run, const std::string& run_name, const PlanEdit& edit,
                   const PartsEdit& apply, const std::vector<ReviewedEdit>& reviewed,
                   EditOutcome& outcome) {
  const Equivalence equivalence =
      EquivalentPlans(PlansOf(run, PlannedParts(run)), PlansOf(run, apply(run, PlannedParts(run))));
  if (equivalence.equivalent) {
    outcome.fate = EditFate::kEquivalent;
    return;
  }
  for (size_t i = 0; i < reviewed.size(); ++i) {
    if (!MatchesPattern(reviewed[i].run, run_name)) continue;
    if (!MatchesPattern(reviewed[i].edit, edit.name)) continue;
    outcome.fate = EditFate::kReviewed;
    outcome.reviewed = static_cast<int32_t>(i);
    return;
  }
  outcome.difference = equivalence.difference;
}

}  // namespace

std::vector<EditRun> EditRuns() {
  return {
      {"replicated",
       "model=probe:3x2,5;mode=replicated;world_size=2;bucket_cap_bytes=16;clip_grad_norm=0.5"},
      {"zero1_broadcast", "model=probe:5,3,4;mode=zero1_broadcast;world_size=3"},
      {"zero1_broadcast view",
       "model=probe:5,3,4;mode=zero1_broadcast;world_size=2;broadcast_bucket_view=1;"
       "num_micro_batches=2"},
      {"zero1_allgather",
       "model=probe:7,11;mode=zero1_allgather;world_size=4;bucket_cap_bytes=4;"
       "clip_grad_norm=0.5"},
      {"zero2 every",
       "model=probe:5,3,7;mode=zero2;world_size=2;bucket_cap_bytes=16;num_micro_batches=2"},
      {"zero2 clipped",
       "model=probe:7,11,10;mode=zero2;world_size=4;bucket_cap_bytes=4;clip_grad_norm=0.5"},
      {"shard_grad_op last",
       "model=probe:5,7;mode=shard_grad_op;world_size=2;num_micro_batches=2;grad_sync=last"},
      {"full_shard pre",
       "model=probe:5,7,6;mode=full_shard;prefetch=backward_pre;world_size=2;"
       "num_micro_batches=2;clip_grad_norm=0.5"},
      {"full_shard post",
       "model=probe:7x2,11,10;mode=full_shard;prefetch=backward_post;world_size=4;layout=rows"},
      // Rank 2 has one element of unit 0 and nothing but padding of unit 2.
      {"full_shard none", "model=probe:7,8,4;mode=full_shard;prefetch=none;world_size=3"},
      {"full_shard tied",
       "model=probe:6,7,6;ties=t2:t0;mode=full_shard;world_size=2;num_micro_batches=2;"
       "grad_sync=last"},
      {"replicated every",
       "model=probe:3,4;mode=replicated;world_size=2;num_micro_batches=2;optimizer=sgd"},
      {"full_shard groups",
       "model=probe:5,6;mode=full_shard;layout=flat_aligned;world_size=2;usage=1@rank:0;"
       "groups=0@weight_decay:0.5"},
      {"full_shard mlp", "model=mlp:3,4,2:bias;mode=full_shard;world_size=2;micro_batch_size=2"},
      {"zero2 mlp",
       "model=mlp:3,4,2;mode=zero2;world_size=2;micro_batch_size=2;scale_before_reduce=1"},
  };
}

absl::StatusOr<std::vector<ReviewedEdit>> ParseReviewedEdits(absl::string_view text) {
  std::vector<ReviewedEdit> entries;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits('|', 2));
    for (absl::string_view& part : parts) part = absl::StripAsciiWhitespace(part);
    if (parts.size() != 3 || parts[0].empty() || parts[1].empty() || parts[2].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("reviewed edits, line ", line_number, ": '",
                                                     line, "'; accepted: 'run | edit | reason'"));
    }
    if (!NamesItsChange(parts[1])) {
      return absl::InvalidArgumentError(
          absl::StrCat("reviewed edits, line ", line_number, ": '", parts[1],
                       "' excuses more than one change of an operation; accepted: * before the ",
                       "colon and for the rank, as in 'op * norm: drop, *'"));
    }
    entries.push_back({std::string(parts[0]), std::string(parts[1]), std::string(parts[2])});
  }
  return entries;
}

bool MatchesPattern(absl::string_view pattern, absl::string_view text) {
  const size_t star = pattern.find('*');
  if (star == absl::string_view::npos) return pattern == text;
  if (text.substr(0, star) != pattern.substr(0, star)) return false;
  const absl::string_view rest = pattern.substr(star + 1);
  for (size_t skipped = star; skipped <= text.size(); ++skipped) {
    if (MatchesPattern(rest, text.substr(skipped))) return true;
  }
  return false;
}

absl::StatusOr<std::vector<EditOutcome>> JudgeEdits(const EditRun& run,
                                                    const std::vector<ReviewedEdit>& reviewed) {
  SHARDPROOF_ASSIGN_OR_RETURN(const RunDescription description, ParseFaultRun(run.line));
  std::vector<EditOutcome> outcomes;
  for (const PlanEdit& edit : EditsOfStep(description, kEditedStep)) {
    EditOutcome outcome;
    outcome.name = absl::StrCat(run.name, "/", edit.name);
    outcome.kind = edit.kind;
    const PartsEdit apply = ApplyEdit(edit, kEditedStep);
    const KillReport report = RunEdited(description, apply);
    outcome.killers = report.killers;
    if (!report.error.ok() && !IsHangOrDisagreement(report.error)) outcome.error = report.error;
    if (Killed(report)) {
      outcome.fate = EditFate::kKilled;
    } else {
      JudgeSurvivor(description, run.name, edit, apply, reviewed, outcome);
    }
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

absl::StatusOr<NamedEdit> FindNamedEdit(absl::string_view name) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(name, absl::MaxSplits('/', 1));
  std::vector<std::string> names;
  for (const EditRun& run : EditRuns()) {
    names.push_back(run.name);
    if (run.name != parts.first) continue;
    NamedEdit found;
    SHARDPROOF_ASSIGN_OR_RETURN(found.run, ParseFaultRun(run.line));
    SHARDPROOF_ASSIGN_OR_RETURN(found.edit, FindEdit(found.run, kEditedStep, parts.second));
    return found;
  }
  return absl::NotFoundError(absl::StrCat("run '", parts.first, "' of edit '", name,
                                          "' is unknown; accepted: ", absl::StrJoin(names, ", ")));
}

}  // namespace shardproof
