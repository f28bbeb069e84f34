#include "invariants/checks/happens_before.h"

#include <algorithm>

#include "invariants/checks/describe.h"

namespace shardproof {
namespace {

bool SameCollective(const Event& a, const Event& b) {
  return a.collective == b.collective && a.purpose == b.purpose && a.elements == b.elements &&
         a.root == b.root && a.unit == b.unit && a.bucket == b.bucket && a.tensor == b.tensor;
}

// Whether some rank of `ranks` is a member of `group`.
bool TakesPart(const Group& ranks, const Group& group) {
  for (int32_t i = 0; i < ranks.count; ++i) {
    if (group.Contains(ranks.member(i))) return true;
  }
  return false;
}

}  // namespace

void HappensBefore::Build(const std::vector<RankEvents>& ranks) {
  ranks_ = &ranks;
  mismatch_ = {};
  Size();
  slots_.clear();
  for (GroupState& group : groups_) {
    group.slots.clear();
    group.expected = 0;
  }
  for (size_t i = 0; i < ranks.size(); ++i) ReadEntry(static_cast<int32_t>(i));
  FindMissing();
  // Collectives of one group that match cannot wait for each other in a circle; of more they
  // can, and only Refine finds out.
  const auto used = [](const GroupState& group) { return !group.slots.empty(); };
  if (std::count_if(groups_.begin(), groups_.end(), used) > 1) Refine();
}

void HappensBefore::Refine() {
  joining_ = true;
  width_ = ranks_->size() * kStreams;
  clocks_.resize(known_.size() * width_);
  slot_clocks_.assign(slots_.size() * width_, 0);
  ended_.assign(known_.size(), 0);
  cursors_.assign(width_, {});
  for (Slot& slot : slots_) slot.arrived = 0;
  Run();
}

void HappensBefore::Size() {
  base_.resize(ranks_->size());
  size_t events = 0;
  for (size_t i = 0; i < ranks_->size(); ++i) {
    base_[i] = events;
    events += (*ranks_)[i].events.size();
  }
  known_.resize(events);
  place_.resize(events);
  slot_.resize(events);
}

// Groups are kept from step to step: a run has few, and their lists need no new memory.
HappensBefore::GroupState& HappensBefore::StateOf(const Group& group, int32_t entry) {
  for (GroupState& state : groups_) {
    if (state.group == group) return state;
  }
  GroupState& state = groups_.emplace_back();
  state.group = group;
  for (int32_t i = 0; i <= entry; ++i) {
    state.member = TakesPart((*ranks_)[i].ranks, group);
    if (state.member) ++state.expected;
  }
  return state;
}

void HappensBefore::ReadEntry(int32_t entry) {
  const RankEvents& ranks = (*ranks_)[entry];
  for (GroupState& group : groups_) {
    group.issued = 0;
    group.member = TakesPart(ranks.ranks, group.group);
    if (group.member) ++group.expected;
  }
  std::array<int32_t, kStreams> places = {};
  std::array<int32_t, kStreams> last;
  last.fill(-1);
  const int32_t events = static_cast<int32_t>(ranks.events.size());
  for (int32_t i = 0; i < events; ++i) {
    const int stream = static_cast<int>(ranks.events[i].stream);
    place_[base_[entry] + i] = places[stream]++;
    slot_[base_[entry] + i] = -1;
    OrderLocally(entry, i, last[stream]);
    last[stream] = i;
    if (ranks.events[i].kind == EventKind::kCollective) Match(entry, i);
  }
}

// What has ended when the event starts: what had when those before it did, and they.
void HappensBefore::OrderLocally(int32_t entry, int32_t index, int32_t before) {
  const RankEvents& ranks = (*ranks_)[entry];
  std::array<int32_t, kStreams>* known = &known_[base_[entry]];
  const int32_t* place = &place_[base_[entry]];
  std::array<int32_t, kStreams> now = {};
  const auto after = [&](int32_t event) {
    for (int s = 0; s < kStreams; ++s) now[s] = std::max(now[s], known[event][s]);
    int32_t& own = now[static_cast<int>(ranks.events[event].stream)];
    own = std::max(own, place[event] + 1);
  };
  if (before >= 0) after(before);
  for (const int32_t wait : WaitsOf(ranks, ranks.events[index])) {
    if (wait >= 0 && wait < index) after(wait);
  }
  known[index] = now;
}

void HappensBefore::Match(int32_t entry, int32_t index) {
  const Event& event = (*ranks_)[entry].events[index];
  GroupState& group = StateOf(event.group, entry);
  if (!group.member) return;
  const size_t ordinal = group.issued++;
  if (ordinal == group.slots.size()) {
    group.slots.push_back(static_cast<int32_t>(slots_.size()));
    slots_.push_back({entry, index, 0, 0, true});
  }
  const int32_t number = group.slots[ordinal];
  Slot& slot = slots_[number];
  slot_[base_[entry] + index] = number;
  ++slot.members;
  if (SameCollective(event, (*ranks_)[slot.entry].events[slot.event])) return;
  Report({true, entry, index, slot.entry, slot.event, false});
  // What follows is out of step as well.
  for (size_t s = ordinal; s < group.slots.size(); ++s) slots_[group.slots[s]].joins = false;
}

// A collective that some member never issues.
void HappensBefore::FindMissing() {
  for (const GroupState& group : groups_) {
    bool joins = true;
    for (const int32_t number : group.slots) {
      Slot& slot = slots_[number];
      if (slot.joins && joins && slot.members != group.expected) {
        int32_t other = -1;
        for (size_t i = 0; i < ranks_->size() && other < 0; ++i) {
          const size_t end = i + 1 < base_.size() ? base_[i + 1] : slot_.size();
          const bool issued = std::find(slot_.begin() + base_[i], slot_.begin() + end, number) !=
                              slot_.begin() + end;
          if (!issued && TakesPart((*ranks_)[i].ranks, group.group)) other = static_cast<int>(i);
        }
        Report({true, slot.entry, slot.event, other, -1, false});
      }
      joins &= slot.joins && slot.members == group.expected;
      slot.joins = joins;
    }
  }
}

void HappensBefore::Report(Mismatch mismatch) {
  if (!mismatch_.found) mismatch_ = mismatch;
}

// Each (rank, stream) goes on as far as its waits and collectives allow, until all are
// through. If none can move, the collectives wait in a circle: they stop joining.
void HappensBefore::Run() {
  const int32_t entries = static_cast<int32_t>(ranks_->size());
  while (true) {
    bool moved = false;
    bool all_ended = true;
    for (int32_t entry = 0; entry < entries; ++entry) {
      const int32_t events = static_cast<int32_t>((*ranks_)[entry].events.size());
      for (int stream = 0; stream < kStreams; ++stream) {
        while (Advance(entry, stream)) moved = true;
        all_ended &= cursors_[entry * kStreams + stream].next >= events;
      }
    }
    if (all_ended) return;
    if (moved) continue;
    for (int32_t entry = 0; entry < entries && joining_; ++entry) {
      for (int stream = 0; stream < kStreams; ++stream) {
        const Cursor& cursor = cursors_[entry * kStreams + stream];
        if (cursor.arrived) Report({true, entry, cursor.next, -1, -1, true});
      }
    }
    if (!joining_) return;  // cannot happen: waits name earlier events
    joining_ = false;
  }
}

// One step of a stream: its next event starts, or ends. False when it has to wait for others.
bool HappensBefore::Advance(int32_t entry, int stream) {
  Cursor& cursor = cursors_[entry * kStreams + stream];
  const std::vector<Event>& events = (*ranks_)[entry].events;
  const int32_t size = static_cast<int32_t>(events.size());
  while (cursor.next < size && static_cast<int>(events[cursor.next].stream) != stream) {
    ++cursor.next;
  }
  if (cursor.next >= size) return false;
  const int32_t number = slot_[base_[entry] + cursor.next];
  const bool joins = joining_ && number >= 0 && slots_[number].joins;
  if (!cursor.arrived) {
    if (!WaitsEnded(entry, events[cursor.next])) return false;
    Start(entry, stream);
    if (joins) {
      Join(&slot_clocks_[number * width_], Clock(entry, cursor.next));
      ++slots_[number].arrived;
      cursor.arrived = true;
    }
  }
  if (joins && slots_[number].arrived < slots_[number].members) return false;
  End(entry, stream, joins ? number : -1);
  return true;
}

bool HappensBefore::WaitsEnded(int32_t entry, const Event& event) const {
  const RankEvents& ranks = (*ranks_)[entry];
  const int32_t index = static_cast<int32_t>(&event - ranks.events.data());
  for (const int32_t wait : WaitsOf(ranks, event)) {
    if (wait >= 0 && wait < index && !ended_[base_[entry] + wait]) return false;
  }
  return true;
}

void HappensBefore::Start(int32_t entry, int stream) {
  const Cursor& cursor = cursors_[entry * kStreams + stream];
  const RankEvents& ranks = (*ranks_)[entry];
  int32_t* clock = Clock(entry, cursor.next);
  if (cursor.last >= 0) {
    std::copy_n(Clock(entry, cursor.last), width_, clock);
  } else {
    std::fill_n(clock, width_, 0);
  }
  for (const int32_t wait : WaitsOf(ranks, ranks.events[cursor.next])) {
    if (wait >= 0 && wait < cursor.next) Join(clock, Clock(entry, wait));
  }
  for (int s = 0; s < kStreams; ++s) {
    known_[base_[entry] + cursor.next][s] = clock[entry * kStreams + s];
  }
}

void HappensBefore::End(int32_t entry, int stream, int32_t slot) {
  Cursor& cursor = cursors_[entry * kStreams + stream];
  int32_t* clock = Clock(entry, cursor.next);
  if (slot >= 0) Join(clock, &slot_clocks_[slot * width_]);
  clock[entry * kStreams + stream] = place_[base_[entry] + cursor.next] + 1;
  ended_[base_[entry] + cursor.next] = 1;
  cursor.last = cursor.next++;
  cursor.arrived = false;
}

}  // namespace shardproof
