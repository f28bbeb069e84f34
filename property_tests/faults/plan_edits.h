// The generated edits of a plan: every way in which one operation can be a little wrong.
//
// Each operation is dropped, issued twice, swapped with its neighbour; a collective gets another
// group or kind; operands become another buffer or are off by one; scales become 1 or their
// square; each wait and each free is left out. Each on one rank and on all ranks. An edit has a
// name, by which it can be made again.
#ifndef PROPERTY_TESTS_FAULTS_PLAN_EDITS_H_
#define PROPERTY_TESTS_FAULTS_PLAN_EDITS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "property_tests/faults/fault.h"
#include "property_tests/faults/plan_draft.h"

namespace shardproof {

enum class EditKind : uint8_t {
  kDrop,
  kDuplicate,
  kSwap,
  kGroup,
  kKind,
  kOperand,
  kScale,
  kWait,
  kFree,
};
inline constexpr int kEditKinds = 9;
absl::string_view Name(EditKind kind);

// One edit of one operation of one rank's plan.
struct OpEdit {
  EditKind kind = EditKind::kDrop;
  std::string text;  // "swap with the next": unique for the operation
  std::function<void(PlanDraft& draft)> apply;
};

// What can be done to the operation at `at`. Operands stay within their buffers.
std::vector<OpEdit> EditsOfOp(const RunDescription& run, const PlanDraft& draft, size_t at);

// An edit of the plans of one step.
struct PlanEdit {
  EditKind kind = EditKind::kDrop;
  int32_t op = -1;    // place in the plan
  int32_t rank = -1;  // -1: all ranks
  std::string text;   // OpEdit::text
  std::string name;   // "op 12 reduce_scatter unit 3: drop, rank 1"
};

// All edits of a step of PlannedParts(run): of the last rank alone, whose shard may have padding,
// and of all ranks. Ranks issue like operations; what one of them cannot do to its own is not
// done there.
std::vector<PlanEdit> EditsOfStep(const RunDescription& run, int64_t step);

// Makes the edit in that step and leaves the others as they are.
PartsEdit ApplyEdit(const PlanEdit& edit, int64_t step);

// NotFound names the edit and how many the step has.
absl::StatusOr<PlanEdit> FindEdit(const RunDescription& run, int64_t step, absl::string_view name);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_PLAN_EDITS_H_
