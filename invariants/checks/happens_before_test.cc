// The clocks against the plain definition: event a is before event b if a path leads from the
// end of a to the start of b. A clock that misses a path reports races that are none; one that
// invents a path hides races.
#include "invariants/checks/happens_before.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "invariants/checks/hand_made.h"

namespace shardproof {
namespace {

constexpr int kRanks = 3;
constexpr int kEvents = 9;

// The transitive closure over starts and ends of all events. Reference first: it stays naive.
class Paths {
 public:
  explicit Paths(const std::vector<Script>& scripts) {
    std::vector<std::vector<int>> collectives(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      int last[kStreams] = {-1, -1};
      for (int i = 0; i < kEvents; ++i) {
        const ScriptedEvent& scripted = scripts[rank].events[i];
        int& before = last[static_cast<int>(scripted.event.stream)];
        Edge(Start(rank, i), End(rank, i));
        if (before >= 0) Edge(End(rank, before), Start(rank, i));
        for (const int32_t wait : scripted.waits) Edge(End(rank, wait), Start(rank, i));
        before = i;
        if (scripted.event.kind == EventKind::kCollective) collectives[rank].push_back(i);
      }
    }
    for (int a = 0; a < kRanks; ++a) {
      for (int b = 0; b < kRanks; ++b) {
        for (size_t n = 0; n < collectives[a].size(); ++n) {
          Edge(Start(a, collectives[a][n]), End(b, collectives[b][n]));
        }
      }
    }
    for (int k = 0; k < kNodes; ++k) {
      for (int i = 0; i < kNodes; ++i) {
        for (int j = 0; j < kNodes && path_[i][k]; ++j) path_[i][j] |= path_[k][j];
      }
    }
  }
  bool Before(int rank, int a, int b) const { return path_[End(rank, a)][Start(rank, b)]; }

 private:
  static constexpr int kNodes = kRanks * kEvents * 2;
  static int Start(int rank, int event) { return (rank * kEvents + event) * 2; }
  static int End(int rank, int event) { return Start(rank, event) + 1; }
  void Edge(int from, int to) { path_[from][to] = true; }
  bool path_[kNodes][kNodes] = {};
};

// The same number of collectives on every rank, at random places and on random streams.
std::vector<Script> RandomScripts(std::mt19937* random) {
  const auto below = [random](int end) { return static_cast<int>((*random)() % end); };
  const int collectives = below(5);
  std::vector<Script> scripts(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    Script& script = scripts[rank];
    script.ranks = {rank, 1, 1};
    script.events.resize(kEvents);
    for (int left = collectives; left > 0;) {
      Event& event = script.events[below(kEvents)].event;
      if (event.kind == EventKind::kCollective) continue;
      event.kind = EventKind::kCollective;
      event.group = {0, 1, kRanks};
      --left;
    }
    for (int i = 0; i < kEvents; ++i) {
      script.events[i].event.stream = static_cast<StreamId>(below(kStreams));
      if (i > 0 && below(3) == 0) script.events[i].waits.push_back(below(i));
    }
  }
  return scripts;
}

TEST(HappensBefore, ClocksFindExactlyThePaths) {
  std::mt19937 random(1);
  HappensBefore order;
  int by_way_of_others = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const std::vector<Script> scripts = RandomScripts(&random);
    const StepObservation observed = ShowScripts(scripts, 0);
    const Paths paths(scripts);
    order.Build(observed.events);
    ASSERT_FALSE(order.mismatch().found);
    std::vector<bool> local;
    for (int pass = 0; pass < 2; ++pass) {
      size_t place = 0;
      for (int rank = 0; rank < kRanks; ++rank) {
        for (int a = 0; a < kEvents; ++a) {
          for (int b = 0; b < kEvents; ++b) {
            if (a == b) continue;
            const bool before = order.Before(rank, a, b);
            if (pass == 0) {
              local.push_back(before);
              ASSERT_LE(before, paths.Before(rank, a, b)) << trial << ": " << a << " " << b;
            } else {
              ASSERT_EQ(before, paths.Before(rank, a, b)) << trial << ": " << a << " " << b;
              by_way_of_others += before && !local[place];
            }
            ++place;
          }
        }
      }
      order.Refine();
    }
  }
  EXPECT_GT(by_way_of_others, 100);  // the trials were about something
}

}  // namespace
}  // namespace shardproof
