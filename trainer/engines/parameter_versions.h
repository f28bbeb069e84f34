// ParameterVersions: how many updates the values in one rank's parameter buffers carry, as the
// operations of its plans move them.
//
// Values play no part, so an engine that moves floats and a replay that moves none share it:
//
//   before an operation runs   BeforeOp (what its reads meet), Send for a collective
//   when it has ended          Receive, Copy or Update, as it was; then AfterOp (what it wrote)
//
// A rank in another process is not seen: what comes from it is of unknown version.
#ifndef TRAINER_ENGINES_PARAMETER_VERSIONS_H_
#define TRAINER_ENGINES_PARAMETER_VERSIONS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

class ParameterVersions {
 public:
  // Parameters carry version 0, whatever is not written yet none. `plan` is any of the rank's:
  // all have the same buffers.
  ParameterVersions(const StepPlan& plan, const Placement& placement);

  // Updates carried by the values of a parameter buffer: the least over the parts that the
  // range touches; -1 where nothing was written. Other buffers have no versions: -1.
  int32_t Of(int32_t buffer, ElementRange range) const;
  // Sets the version of the parts that begin within the range.
  void Set(int32_t buffer, ElementRange range, int32_t version);
  // The buffer was freed.
  void Forget(int32_t buffer);

  // Forgets what was sent, and the versions that `events` shows. `plan` is the step's.
  void BeginStep(const StepPlan& plan, RankEvents& events);

  // The versions that the reads of an operation meet, and that its writes leave; what it frees
  // carries none any more.
  void BeforeOp(const StepPlan& plan, const Op& op, RankEvents& events) const;
  void AfterOp(const StepPlan& plan, const Op& op, RankEvents& events);

  // A collective, the plan's operation `index`, is issued.
  void Send(const Op& op, int32_t index);
  // Whether every member of the group has sent as often as this rank had with this operation.
  // `ranks` as below, all of them known.
  bool AllHaveSent(const Op& op, int32_t index,
                   absl::Span<const ParameterVersions* const> ranks) const;
  // It has ended: what arrived carries the version that its sender had when it sent. `ranks`, by
  // rank: all ranks' versions; null for a rank that is in another process.
  void Receive(const Op& op, int32_t index, absl::Span<const ParameterVersions* const> ranks);
  void Copy(const Op& op);
  // An optimizer update of the step whose data is that of `data_step`; what it covers carries
  // `version` from now on, elements that nobody used included.
  void Update(const RunDescription& run, const Placement& placement, const StepPlan& plan,
              const Op& op, int64_t data_step, int32_t version);

 private:
  // Parts of a parameter buffer that are written separately: shards, or an owner's tensors.
  struct Part {
    int64_t first = 0;
    int64_t end = 0;
    int32_t version = -1;
  };
  struct GroupCalls {
    Group group;
    std::vector<int32_t> sent;  // versions, by this rank's calls of the step in the group
  };

  const GroupCalls* CallsOf(Group group) const;
  int32_t Sent(Group group, int32_t place) const;
  void AgeUnused(const RunDescription& run, const Placement& placement, const StepPlan& plan,
                 int64_t data_step, int32_t version);

  std::vector<std::vector<Part>> parts_;  // by buffer
  std::vector<GroupCalls> groups_;
  std::vector<int32_t> place_in_group_;  // by operation: its place in its group's calls
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_PARAMETER_VERSIONS_H_
