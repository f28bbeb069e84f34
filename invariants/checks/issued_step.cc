#include "invariants/checks/issued_step.h"

#include <vector>

#include "invariants/closed_forms/closed_forms.h"

namespace shardproof {

StepObservation IssuedStep(const RunDescription& run, int64_t step) {
  RankEvents events;
  for (const ExpectedItem& item : ExpectedSequence(run)) {
    Event event;
    event.kind = item.kind;
    event.phase = item.phase;
    event.collective = item.collective;
    event.purpose = item.purpose;
    event.dtype = item.dtype;
    event.group = item.group;
    event.root = item.root;
    event.elements = item.elements;
    event.micro_batch = item.micro_batch;
    event.unit = item.unit;
    event.bucket = item.bucket;
    event.tensor = item.tensor;
    event.stage = item.stage;
    event.stage_count = item.stage_count;
    events.events.push_back(event);
  }
  StepObservation observed;
  observed.step = step;
  for (int32_t r = 0; r < run.sharding.world_size.value; ++r) {
    events.ranks = Group{r, 1, 1};
    observed.events.push_back(events);
  }
  return observed;
}

int32_t Find(const RankEvents& events, EventKind kind, Phase phase, int32_t unit, int32_t nth) {
  for (size_t i = 0; i < events.events.size(); ++i) {
    const Event& event = events.events[i];
    if (event.kind != kind || event.phase != phase || event.unit != unit) continue;
    if (nth-- == 0) return static_cast<int32_t>(i);
  }
  return -1;
}

void Erase(RankEvents* events, int32_t event) {
  events->events.erase(events->events.begin() + event);
}

void MoveBefore(RankEvents* events, int32_t event, int32_t before) {
  const Event moved = events->events[event];
  Erase(events, event);
  events->events.insert(events->events.begin() + (event < before ? before - 1 : before), moved);
}

}  // namespace shardproof
