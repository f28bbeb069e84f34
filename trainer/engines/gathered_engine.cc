#include "trainer/engines/gathered_engine.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/observation/observation_wire.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/version_replay.h"

namespace shardproof {
namespace {

// What one rank shows, of whichever part.
struct RankView {
  const StepObservation* part = nullptr;
  size_t place = 0;  // among the part's ranks
};

// By rank of the run.
absl::StatusOr<std::vector<RankView>> ViewsByRank(const RunDescription& run,
                                                  const std::vector<StepObservation>& parts) {
  std::vector<RankView> views(static_cast<size_t>(run.sharding.world_size.value));
  for (const StepObservation& part : parts) {
    for (size_t place = 0; place < part.events.size(); ++place) {
      const Group& ranks = part.events[place].ranks;
      const bool known =
          ranks.count == 1 && ranks.first >= 0 && ranks.first < run.sharding.world_size.value;
      if (!known || views[ranks.first].part != nullptr) {
        return absl::InvalidArgumentError(
            known ? absl::StrCat("rank ", ranks.first, " was shown twice")
                  : absl::StrCat(ranks.count, " ranks from ", ranks.first,
                                 " on were shown as one; accepted is each of the run's ",
                                 run.sharding.world_size.value, " ranks by itself"));
      }
      views[ranks.first] = {&part, place};
    }
  }
  for (size_t rank = 0; rank < views.size(); ++rank) {
    if (views[rank].part == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("nobody has shown rank ", rank));
    }
  }
  return views;
}

// What a part shows of each of its ranks, or of none.
template <typename T>
absl::Status Append(const RankView& view, size_t rank, absl::string_view what,
                    const std::vector<T> StepObservation::*field, std::vector<T>& merged) {
  const std::vector<T>& shown = view.part->*field;
  if (shown.empty() && merged.empty()) return absl::OkStatus();
  if (shown.size() != view.part->events.size() || merged.size() != rank) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " shows ", shown.size(), " ",
                                                   what, " of ", view.part->events.size(),
                                                   " ranks, and those before it ", merged.size()));
  }
  merged.push_back(shown[view.place]);
  return absl::OkStatus();
}

class ReplayedEngine : public Engine {
 public:
  ReplayedEngine(const RunDescription& run, EngineParts parts, std::unique_ptr<Engine> engine)
      : engine_(std::move(engine)), replay_(MakeVersionReplay(run, std::move(parts))) {}

  absl::StatusOr<const StepObservation*> Step() override {
    SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const step, engine_->Step());
    step_ = *step;
    SHARDPROOF_RETURN_IF_ERROR(replay_->Step(step_.events));
    return &step_;
  }

 private:
  const std::unique_ptr<Engine> engine_;
  const std::unique_ptr<VersionReplay> replay_;
  StepObservation step_;
};

class GatheredEngine : public Engine {
 public:
  GatheredEngine(const RunDescription& run, EngineParts parts, std::unique_ptr<Engine> engine,
                 Agreement& agreement)
      : run_(run),
        engine_(std::move(engine)),
        agreement_(agreement),
        replay_(MakeVersionReplay(run, std::move(parts))) {}

  absl::StatusOr<const StepObservation*> Step() override {
    const bool leads = agreement_.job().rank().value == 0;
    agreement_.job().Reuse(std::exchange(received_, {}));  // The last step is no longer valid.
    const absl::StatusOr<const StepObservation*> own = engine_->Step();
    // Who leads has its own already.
    const PackedStep packed = own.ok() && !leads ? PackStep(**own) : PackedStep();
    SHARDPROOF_ASSIGN_OR_RETURN(received_, agreement_.Gather(own.status(), packed.Pieces()));
    return leads ? Merge(**own) : *own;
  }

 private:
  absl::StatusOr<const StepObservation*> Merge(const StepObservation& own) {
    std::vector<StepObservation> parts = {own};
    for (size_t rank = 1; rank < received_.size(); ++rank) {
      absl::StatusOr<StepObservation> part = UnpackStep(received_[rank]);
      if (!part.ok()) {
        return absl::Status(part.status().code(),
                            absl::StrCat("rank ", rank, ": ", part.status().message()));
      }
      parts.push_back(*std::move(part));
    }
    SHARDPROOF_ASSIGN_OR_RETURN(step_, MergeSteps(run_, parts));
    SHARDPROOF_RETURN_IF_ERROR(replay_->Step(step_.events));
    return &step_;
  }

  const RunDescription& run_;
  const std::unique_ptr<Engine> engine_;
  Agreement& agreement_;
  const std::unique_ptr<VersionReplay> replay_;
  std::vector<std::string> received_;  // by rank; values of step_ are in it
  StepObservation step_;
};

}  // namespace

absl::StatusOr<StepObservation> MergeSteps(const RunDescription& run,
                                           const std::vector<StepObservation>& parts) {
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<RankView> views, ViewsByRank(run, parts));
  StepObservation merged;
  merged.step = views[0].part->step;
  for (size_t rank = 0; rank < views.size(); ++rank) {
    const StepObservation& part = *views[rank].part;
    if (part.step != merged.step) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " shows step ", part.step,
                                                     ", and rank 0 step ", merged.step));
    }
    merged.events.push_back(part.events[views[rank].place]);
    merged.any_order = merged.any_order || part.any_order;
    SHARDPROOF_RETURN_IF_ERROR(
        Append(views[rank], rank, "states", &StepObservation::states, merged.states));
    SHARDPROOF_RETURN_IF_ERROR(
        Append(views[rank], rank, "losses", &StepObservation::losses, merged.losses));
    SHARDPROOF_RETURN_IF_ERROR(
        Append(views[rank], rank, "clips", &StepObservation::clips, merged.clips));
    SHARDPROOF_RETURN_IF_ERROR(
        Append(views[rank], rank, "devices", &StepObservation::devices, merged.devices));
  }
  return merged;
}

std::unique_ptr<Engine> MakeReplayedEngine(const RunDescription& run, EngineParts parts,
                                           std::unique_ptr<Engine> engine) {
  return std::make_unique<ReplayedEngine>(run, std::move(parts), std::move(engine));
}

std::unique_ptr<Engine> MakeGatheredEngine(const RunDescription& run, EngineParts parts,
                                           std::unique_ptr<Engine> engine, Agreement& agreement) {
  return std::make_unique<GatheredEngine>(run, std::move(parts), std::move(engine), agreement);
}

}  // namespace shardproof
