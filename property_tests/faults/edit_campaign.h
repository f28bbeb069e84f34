// The campaign of generated edits: every edit of one step of a few small runs, judged.
//
// An edit that no check finds must be equivalent to what was planned, by EquivalentPlans or by
// the reviewed list. What is neither is a survivor.
#ifndef PROPERTY_TESTS_FAULTS_EDIT_CAMPAIGN_H_
#define PROPERTY_TESTS_FAULTS_EDIT_CAMPAIGN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "property_tests/faults/kill.h"
#include "property_tests/faults/plan_edits.h"

namespace shardproof {

// A run whose plans are edited. Together they have every kind of operation that planners issue.
struct EditRun {
  std::string name;  // "zero2 every"
  std::string line;
};
std::vector<EditRun> EditRuns();

// The step that is edited: neither the first, which differs from the others, nor the last, so
// that what an edit leaves behind can show.
inline constexpr int64_t kEditedStep = 1;

// Edits that no rule finds equivalent and yet are, each with the reason.
struct ReviewedEdit {
  std::string run;   // an EditRun's name, with * for any text
  std::string edit;  // a PlanEdit's name, with * for any text but in its change
  std::string reason;
};

// One entry a line, "run | edit | reason"; '#' begins a comment, empty lines are skipped.
// InvalidArgument names the line and what it lacks; an entry that speaks of any change of an
// operation is refused.
absl::StatusOr<std::vector<ReviewedEdit>> ParseReviewedEdits(absl::string_view text);

// Whether `text` is `pattern` with each * standing for any text.
bool MatchesPattern(absl::string_view pattern, absl::string_view text);

enum class EditFate : uint8_t { kKilled, kEquivalent, kReviewed, kSurvived };

struct EditOutcome {
  std::string name;  // "zero2 every/op 12 reduce_scatter bucket 0: drop, rank 1"
  EditKind kind = EditKind::kDrop;
  EditFate fate = EditFate::kSurvived;
  std::vector<std::string> killers = {};
  std::string difference = {};  // of a survivor: why it is not equivalent
  int32_t reviewed = -1;        // the entry that speaks of it
  absl::Status error = {};      // not a hang or a disagreement: the edit is no plan that can run
};

// All edits of one run. NotFound or InvalidArgument: the line is no run.
absl::StatusOr<std::vector<EditOutcome>> JudgeEdits(const EditRun& run,
                                                    const std::vector<ReviewedEdit>& reviewed);

// By the name that EditOutcome has. NotFound: no such run, or no such edit of it.
struct NamedEdit {
  RunDescription run;
  PlanEdit edit;
};
absl::StatusOr<NamedEdit> FindNamedEdit(absl::string_view name);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_EDIT_CAMPAIGN_H_
