// One planner a mode; PlanStep (planner.h) chooses. Private to this folder.
#ifndef TRAINER_PLAN_MODE_PLANNERS_H_
#define TRAINER_PLAN_MODE_PLANNERS_H_

#include "trainer/plan/plan_builder.h"

namespace shardproof {

// bucket_planners.cc
void PlanReplicated(PlanBuilder& step);
void PlanZero1Broadcast(PlanBuilder& step);
void PlanZero1AllGather(PlanBuilder& step);
void PlanZero2(PlanBuilder& step);

void PlanBucketForward(PlanBuilder& step);

// unit_planners.cc
void PlanShardGradOp(PlanBuilder& step);
void PlanFullShard(PlanBuilder& step);
void PlanUnitForward(PlanBuilder& step);
void PlanUnitViewOpening(PlanBuilder& step);
void PlanUnitViewClosing(PlanBuilder& step, bool write_back);

// Declares the mode's transient buffers, so that a plan that uses none of them has the same
// buffers as the others.
void DeclareBucketTransients(PlanBuilder& step);
void DeclareUnitTransients(PlanBuilder& step);
inline void DeclareTransients(PlanBuilder& step) {
  ShardsUnits(step.run().sharding.mode) ? DeclareUnitTransients(step)
                                        : DeclareBucketTransients(step);
}

}  // namespace shardproof

#endif  // TRAINER_PLAN_MODE_PLANNERS_H_
