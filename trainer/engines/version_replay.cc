#include "trainer/engines/version_replay.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/parameter_versions.h"
#include "trainer/engines/plan_bounds.h"

namespace shardproof {
namespace {

struct RankReplay {
  StepPlan plan;
  ParameterVersions versions;
  size_t next = 0;      // operation, in issue order
  bool issued = false;  // it is a collective, and this rank has sent
};

class Replay : public VersionReplay {
 public:
  Replay(const RunDescription& run, EngineParts parts) : run_(run), parts_(std::move(parts)) {}

  absl::Status Step(std::vector<RankEvents>& events) override {
    SHARDPROOF_RETURN_IF_ERROR(PlanRanks());
    SHARDPROOF_RETURN_IF_ERROR(CheckEvents(events));
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].next = 0;
      ranks_[rank].versions.BeginStep(ranks_[rank].plan, events[rank]);
    }
    SHARDPROOF_RETURN_IF_ERROR(Play(events));
    ++step_;
    return absl::OkStatus();
  }

 private:
  // The plans of this step; those of step 1 serve all later ones where plans do not vary.
  absl::Status PlanRanks() {
    if (step_ > 1 && !parts_.plan_varies_by_step) return absl::OkStatus();
    const int32_t ranks = run_.sharding.world_size.value;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      StepPlan plan = parts_.plan(run_, parts_.placement, Rank{rank}, step_);
      SHARDPROOF_RETURN_IF_ERROR(CheckPlan(run_, parts_.placement, plan));
      if (step_ == 0) {
        ParameterVersions versions(plan, parts_.placement);
        ranks_.push_back({std::move(plan), std::move(versions)});
      } else {
        ranks_[rank].plan = std::move(plan);
      }
    }
    versions_.clear();
    for (const RankReplay& rank : ranks_) versions_.push_back(&rank.versions);
    return absl::OkStatus();
  }

  absl::Status CheckEvents(const std::vector<RankEvents>& events) const {
    if (events.size() != ranks_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("events of ", events.size(), " ranks of ",
                                                     ranks_.size(), ": accepted are all ranks'"));
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const StepPlan& plan = ranks_[rank].plan;
      if (events[rank].accesses.size() == plan.accesses.size() &&
          events[rank].events.size() == plan.ops.size()) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " shows ", events[rank].events.size(), " events with ",
                       events[rank].accesses.size(), " accesses in step ", step_,
                       ", where its plan has ", plan.ops.size(), " with ", plan.accesses.size()));
    }
    return absl::OkStatus();
  }

  absl::Status Play(std::vector<RankEvents>& events) {
    bool ended = false;
    for (bool advanced = true; advanced && !ended;) {
      advanced = false;
      ended = true;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (ranks_[rank].next < ranks_[rank].plan.ops.size()) {
          SHARDPROOF_ASSIGN_OR_RETURN(const bool done, PlayNext(ranks_[rank], events[rank]));
          if (!done) break;
          advanced = true;
        }
        ended = ended && ranks_[rank].next == ranks_[rank].plan.ops.size();
      }
    }
    return ended ? absl::OkStatus() : Stuck();
  }

  // False: it is a collective in which others are missing.
  absl::StatusOr<bool> PlayNext(RankReplay& rank, RankEvents& events) {
    const int32_t index = static_cast<int32_t>(rank.next);
    const Op& op = rank.plan.ops[index];
    if (!rank.issued) {
      rank.versions.BeforeOp(rank.plan, op, events);
      if (op.kind == OpKind::kCollective) {
        SHARDPROOF_RETURN_IF_ERROR(CheckGroup(rank.plan.rank, op, index));
        rank.versions.Send(op, index);
        rank.issued = true;
      }
    }
    if (op.kind == OpKind::kCollective) {
      if (!rank.versions.AllHaveSent(op, index, versions_)) return false;
      rank.versions.Receive(op, index, versions_);
      rank.issued = false;
    } else if (op.kind == OpKind::kCopy) {
      rank.versions.Copy(op);
    } else if (op.kind == OpKind::kOptimizerUpdate) {
      rank.versions.Update(run_, parts_.placement, rank.plan, op, step_,
                           static_cast<int32_t>(step_) + 1);
    }
    rank.versions.AfterOp(rank.plan, op, events);
    ++rank.next;
    return true;
  }

  absl::Status CheckGroup(Rank rank, const Op& op, int32_t index) const {
    const Group& group = op.group;
    const int64_t last = group.first + (int64_t{group.count} - 1) * group.stride;
    const bool of_the_world = group.first >= 0 && group.stride >= 1 && group.count >= 1 &&
                              last < run_.sharding.world_size.value;
    const bool has_root =
        op.collective != CollectiveKind::kBroadcast || (of_the_world && group.Contains({op.root}));
    if (of_the_world && group.Contains(rank) && has_root) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank.value, ", operation ", index, ": group (first ", group.first, ", stride ",
        group.stride, ", count ", group.count, ") with root ", op.root,
        "; accepted is a group of the world that holds the rank, and the root of a broadcast"));
  }

  absl::Status Stuck() const {
    std::string message = absl::StrCat("deadlock in step ", step_, ":");
    for (const RankReplay& rank : ranks_) {
      if (rank.next == rank.plan.ops.size()) continue;
      const Op& op = rank.plan.ops[rank.next];
      absl::StrAppend(&message, " rank ", rank.plan.rank.value, " waits at operation ", rank.next,
                      " for others in ", Name(op.collective), ";");
    }
    message.pop_back();
    return absl::DeadlineExceededError(message);
  }

  const RunDescription& run_;
  const EngineParts parts_;
  std::vector<RankReplay> ranks_;
  std::vector<const ParameterVersions*> versions_;  // by rank
  int64_t step_ = 0;
};

}  // namespace

std::unique_ptr<VersionReplay> MakeVersionReplay(const RunDescription& run, EngineParts parts) {
  return std::make_unique<Replay>(run, std::move(parts));
}

}  // namespace shardproof
