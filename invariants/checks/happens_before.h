// Which events of a step are ordered, on every schedule: vector clocks over ranks and streams.
//
// The rules of order are those of ordering.h. A clock counts, for each (rank, stream), how
// many of its events must have ended.
//
// Build knows what a rank's own streams and waits order, in one pass over the events; mostly
// that is enough to find a step in order. Refine adds what collectives order over other ranks,
// for (events of all ranks) x (ranks x streams) counts. Memory is reused from step to step.
#ifndef INVARIANTS_CHECKS_HAPPENS_BEFORE_H_
#define INVARIANTS_CHECKS_HAPPENS_BEFORE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "invariants/observation/observation.h"

namespace shardproof {

class HappensBefore {
 public:
  // Collectives that do not match: `event` of the `entry`-th RankEvents against
  // `other_event` of the `other`-th; -1: it has none left to match.
  struct Mismatch {
    bool found = false;
    int32_t entry = -1;
    int32_t event = -1;
    int32_t other = -1;
    int32_t other_event = -1;
    bool stalled = false;  // all match, but waits on each other in a circle
  };

  // Orders the events of one step, each rank by itself, and matches their collectives.
  // `ranks` outlives the questions below. What is ordered now stays so after Refine.
  void Build(const std::vector<RankEvents>& ranks);
  // Adds the order that collectives make.
  void Refine();

  const Mismatch& mismatch() const { return mismatch_; }

  // Whether event `a` of an entry has ended when its event `b` starts, on every schedule.
  bool Before(int32_t entry, int32_t a, int32_t b) const {
    const size_t base = base_[entry];
    const Event& event = (*ranks_)[entry].events[a];
    return known_[base + b][static_cast<int>(event.stream)] > place_[base + a];
  }
  // How many events of `stream` have ended when event `b` starts, and which of its stream's
  // events one is.
  int32_t Ended(int32_t entry, int32_t b, StreamId stream) const {
    return known_[base_[entry] + b][static_cast<int>(stream)];
  }
  int32_t Place(int32_t entry, int32_t event) const { return place_[base_[entry] + event]; }

 private:
  // The n-th collective of a group: who takes part, who has arrived, and what they knew.
  struct Slot {
    int32_t entry = -1;  // of the first who takes part
    int32_t event = -1;
    int32_t members = 0;
    int32_t arrived = 0;
    bool joins = true;
  };
  struct GroupState {
    Group group;
    int32_t expected = 0;        // entries with a member
    bool member = false;         // the entry that is being read has one
    int32_t issued = 0;          // by the entry that is being read
    std::vector<int32_t> slots;  // by ordinal
  };
  struct Cursor {
    int32_t next = 0;      // event
    int32_t last = -1;     // event before it on the stream
    bool arrived = false;  // `next` is a collective that has started and waits for others
  };

  void Size();
  void ReadEntry(int32_t entry);
  void Match(int32_t entry, int32_t index);
  void OrderLocally(int32_t entry, int32_t index, int32_t before);
  GroupState& StateOf(const Group& group, int32_t entry);
  void FindMissing();
  void Report(Mismatch mismatch);
  void Run();
  bool Advance(int32_t entry, int stream);
  bool WaitsEnded(int32_t entry, const Event& event) const;
  void Start(int32_t entry, int stream);
  void End(int32_t entry, int stream, int32_t slot);
  int32_t* Clock(int32_t entry, int32_t event) { return &clocks_[(base_[entry] + event) * width_]; }
  void Join(int32_t* clock, const int32_t* other) const {
    for (size_t i = 0; i < width_; ++i) clock[i] = clock[i] < other[i] ? other[i] : clock[i];
  }

  const std::vector<RankEvents>* ranks_ = nullptr;
  size_t width_ = 0;                                  // counts in a clock
  std::vector<size_t> base_;                          // by entry: its first event in what follows
  std::vector<int32_t> clocks_;                       // when the event ended
  std::vector<std::array<int32_t, kStreams>> known_;  // of its own rank, when it started
  std::vector<int32_t> place_;                        // index within its stream
  std::vector<int32_t> slot_;                         // of a collective; -1: joins nothing
  std::vector<char> ended_;
  std::vector<Cursor> cursors_;  // by entry and stream
  std::vector<GroupState> groups_;
  std::vector<Slot> slots_;
  std::vector<int32_t> slot_clocks_;
  bool joining_ = true;
  Mismatch mismatch_;
};

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_HAPPENS_BEFORE_H_
