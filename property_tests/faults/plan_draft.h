// PlanDraft: a StepPlan that can be edited.
//
// A plan names its operations by their place and keeps what they use in pools. In a draft each
// operation carries its own lists and a name that stays, so that one can be taken out, put in
// or moved and waits still mean what they meant.
//
//   PlanDraft draft = Draft(plan);
//   Erase(draft, 12);
//   StepPlan edited = Build(draft);
#ifndef PROPERTY_TESTS_FAULTS_PLAN_DRAFT_H_
#define PROPERTY_TESTS_FAULTS_PLAN_DRAFT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/plan/step_plan.h"

namespace shardproof {

struct DraftOp {
  int32_t id = -1;
  Op op;                            // its slices of pools mean nothing here
  std::vector<int32_t> waits = {};  // ids
  std::vector<PlanAccess> accesses = {};
  std::vector<UpdateRange> updates = {};
  std::vector<SetUse> parameter_uses = {};
  std::vector<SetUse> gradient_uses = {};
};

struct PlanDraft {
  StepPlan frame;  // rank, buffers and homes: a plan without operations
  std::vector<DraftOp> ops;
  int32_t next_id = 0;
};

PlanDraft Draft(const StepPlan& plan);

// Waits for operations that were taken out, or that are issued later than the one that waits,
// are left out: nothing was recorded there that a stream could wait for.
StepPlan Build(const PlanDraft& draft);

// Takes the operation out. Its stream still waits where it waited, and others that waited for
// it wait for what its stream issued before.
void Erase(PlanDraft& draft, size_t at);
// Puts a copy of `op` before the operation at `at`, under a new id, which is returned.
int32_t Insert(PlanDraft& draft, size_t at, DraftOp op);
// Takes the operation at `from` and puts it before the one at `to`.
void Move(PlanDraft& draft, size_t from, size_t to);

// Waits as a planner would derive them from the accesses: for the last conflicting access of
// each buffer on the other stream, and from an allocation for every free issued before it.
// With it an edit changes what happens, and leaves it well ordered.
void DeriveWaits(PlanDraft& draft);

// A buffer that only this edit uses. Call it in every step, so that the ids agree.
int32_t AddBuffer(PlanDraft& draft, const BufferSpec& spec);

// `to` in place of `from` wherever the operation names the buffer.
void ReplaceBuffer(DraftOp& op, int32_t from, int32_t to);

// The accesses that follow from send and recv: for scale, accumulate and collectives. Those that
// allocate or free stay.
void AccessOperands(DraftOp& op, Rank rank);

// "reduce_scatter", "forward", "optimizer_update"; for messages and names of edits.
std::string Describe(const Op& op);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_PLAN_DRAFT_H_
