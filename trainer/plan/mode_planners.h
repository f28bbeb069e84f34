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

// unit_planners.cc
void PlanShardGradOp(PlanBuilder& step);
void PlanFullShard(PlanBuilder& step);

}  // namespace shardproof

#endif  // TRAINER_PLAN_MODE_PLANNERS_H_
