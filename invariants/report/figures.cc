#include "invariants/report/figures.h"

#include <algorithm>

#include "collectives/traffic_model.h"

namespace shardproof {
namespace {

bool BelongsToMode(Purpose purpose) { return purpose <= Purpose::kGatherParameters; }

CollectiveFigures* FiguresOf(const Event& event, StepFigures& figures) {
  switch (event.collective) {
    case CollectiveKind::kAllReduce:
      return &figures.all_reduce;
    case CollectiveKind::kReduceScatter:
      return &figures.reduce_scatter;
    case CollectiveKind::kBroadcast:
      return &figures.broadcast;
    case CollectiveKind::kAllGather:
      return event.phase == Phase::kForward    ? &figures.all_gather_forward
             : event.phase == Phase::kBackward ? &figures.all_gather_backward
                                               : &figures.all_gather_optimizer;
    case CollectiveKind::kBarrier:
      return nullptr;
  }
  return nullptr;
}

void CountOther(const Event& event, int64_t payload_bytes, std::vector<OtherCollective>& others) {
  const auto same = std::find_if(others.begin(), others.end(), [&](const OtherCollective& other) {
    return other.kind == event.collective && other.purpose == event.purpose;
  });
  OtherCollective& other =
      same != others.end()
          ? *same
          : others.emplace_back(OtherCollective{event.collective, event.purpose, 0, 0});
  ++other.count;
  other.payload_bytes += payload_bytes;
}

void SummarizeCollectives(const RankEvents& events, StepFigures& figures) {
  for (const Event& event : events.events) {
    if (event.kind != EventKind::kCollective) continue;
    const int64_t payload_bytes = event.elements * DtypeBytes(event.dtype);
    CollectiveFigures* const mine = FiguresOf(event, figures);
    if (!BelongsToMode(event.purpose) || mine == nullptr) {
      CountOther(event, payload_bytes, figures.others);
      continue;
    }
    ++mine->count;
    mine->payload_bytes += payload_bytes;
    mine->bus_bytes = BusBytes(event.collective, mine->payload_bytes, event.group.count);
  }
}

struct Peaks {
  int64_t model_state_bytes = 0;
  int64_t activation_bytes = 0;
};

// Live bytes in issue order: an event's allocations count before it, its frees after it.
Peaks PeaksOf(const RankEvents& events) {
  Peaks live;
  Peaks peak;
  const auto add = [&](int32_t buffer, int64_t sign) {
    const BufferInfo& info = events.buffers[buffer];
    const int64_t bytes = sign * info.elements * DtypeBytes(info.dtype);
    if (IsModelState(info.role)) {
      live.model_state_bytes += bytes;
    } else if (info.role != BufferRole::kWorkspace) {
      live.activation_bytes += bytes;
    }
    peak.model_state_bytes = std::max(peak.model_state_bytes, live.model_state_bytes);
    peak.activation_bytes = std::max(peak.activation_bytes, live.activation_bytes);
  };
  for (int32_t buffer : events.live_before) add(buffer, 1);
  for (const Event& event : events.events) {
    for (uint32_t i = 0; i < event.access_count; ++i) {
      const Access& access = events.accesses[event.first_access + i];
      if (access.kind == AccessKind::kAllocate) add(access.buffer, 1);
      if (access.kind == AccessKind::kFree) add(access.buffer, -1);
    }
  }
  return peak;
}

void SummarizeStates(const RunDescription& run, const StepObservation& observed,
                     StepFigures& figures) {
  StateBytes total;
  for (const RankState& state : observed.states) {
    for (int32_t member = 0; member < state.ranks.count; ++member) {
      RankFigures rank;
      rank.rank = state.ranks.member(member).value;
      rank.bytes = state.bytes;
      figures.ranks.push_back(rank);
    }
    total.parameter += state.bytes.parameter * state.ranks.count;
    total.gradient += state.bytes.gradient * state.ranks.count;
    total.optimizer += state.bytes.optimizer * state.ranks.count;
  }
  std::sort(figures.ranks.begin(), figures.ranks.end(),
            [](const RankFigures& a, const RankFigures& b) { return a.rank < b.rank; });
  const double parameter_bytes =
      static_cast<double>(ParameterElements(run.model) * DtypeBytes(Dtype::kFloat32));
  const double trainable_bytes =
      static_cast<double>(TrainableElements(run.model) * DtypeBytes(Dtype::kFloat32));
  figures.parameter_factor = static_cast<double>(total.parameter) / parameter_bytes;
  // Without a trainable tensor there is nothing to divide, and nothing to divide by.
  if (trainable_bytes == 0) return;
  figures.gradient_factor = static_cast<double>(total.gradient) / trainable_bytes;
  figures.optimizer_factor = static_cast<double>(total.optimizer) / trainable_bytes;
}

// Ranks shown by one watched member have its transient buffers and their own state.
void SetPeaks(const RankEvents& events, int64_t peak_bytes, std::vector<RankFigures>& ranks) {
  int64_t watched_steady_bytes = 0;
  for (const RankFigures& rank : ranks) {
    if (rank.rank == events.ranks.first) watched_steady_bytes = rank.bytes.steady();
  }
  for (RankFigures& rank : ranks) {
    if (!events.ranks.Contains(Rank{rank.rank})) continue;
    rank.peak_bytes = peak_bytes - watched_steady_bytes + rank.bytes.steady();
  }
}

}  // namespace

StepFigures SummarizeStep(const RunDescription& run, const StepObservation& observed) {
  StepFigures figures;
  figures.devices = observed.devices;
  figures.states_observed = !observed.states.empty();
  figures.events_observed = !observed.events.empty();
  if (figures.states_observed) SummarizeStates(run, observed, figures);
  for (const RankEvents& events : observed.events) {
    const Peaks peaks = PeaksOf(events);
    if (events.ranks.Contains(Rank{0})) {
      SummarizeCollectives(events, figures);
      figures.activation_peak_bytes = peaks.activation_bytes;
    }
    SetPeaks(events, peaks.model_state_bytes, figures.ranks);
  }
  for (double loss : observed.losses) {
    figures.loss += loss / static_cast<double>(observed.losses.size());
    figures.loss_observed = true;
  }
  return figures;
}

}  // namespace shardproof
