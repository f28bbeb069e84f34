#include "trainer/engines/cuda/arena.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "trainer/plan/planner.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

// By operation, all that happen before it: the transitive closure, by brute force.
std::vector<std::vector<bool>> HappensBefore(const StepPlan& plan) {
  std::vector<std::vector<bool>> before(plan.ops.size(), std::vector<bool>(plan.ops.size()));
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    const auto inherit = [&](size_t earlier) {
      before[op][earlier] = true;
      for (size_t i = 0; i < earlier; ++i) before[op][i] = before[op][i] || before[earlier][i];
    };
    for (int32_t wait : plan.WaitsOf(plan.ops[op])) inherit(wait);
    for (size_t earlier = op; earlier-- > 0;) {
      if (plan.ops[earlier].stream != plan.ops[op].stream) continue;
      inherit(earlier);
      break;
    }
  }
  return before;
}

// By lifetime, the operations that touch its buffer from its allocation to the next one.
std::vector<std::vector<int32_t>> OperationsOfLifetimes(const Arena& arena, const StepPlan& plan) {
  std::vector<std::vector<int32_t>> operations(arena.lifetimes.size());
  std::vector<int32_t> current(plan.buffers.size(), -1);
  for (size_t i = 0; i < arena.lifetimes.size(); ++i) {
    if (arena.lifetimes[i].from_start) current[arena.lifetimes[i].buffer] = static_cast<int32_t>(i);
  }
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    for (int32_t i = 0; i < plan.ops[op].access_count; ++i) {
      const int32_t access = plan.ops[op].first_access + i;
      const int32_t buffer = plan.accesses[access].buffer;
      if (arena.lifetime_of_access[access] >= 0) current[buffer] = arena.lifetime_of_access[access];
      EXPECT_GE(current[buffer], 0) << "operation " << op << " touches nothing";
      if (current[buffer] >= 0) operations[current[buffer]].push_back(static_cast<int32_t>(op));
    }
  }
  return operations;
}

// Empty, or two lifetimes of a plan that could be in use at the same time in the same bytes.
std::string FindConflict(const KeptRegion& kept, const Arena& arena, const StepPlan& plan) {
  const std::vector<std::vector<bool>> before = HappensBefore(plan);
  const std::vector<std::vector<int32_t>> operations = OperationsOfLifetimes(arena, plan);
  const auto precedes = [&](size_t a, size_t b) {
    if (arena.lifetimes[a].to_end || arena.lifetimes[b].from_start) return false;
    for (int32_t first : operations[a]) {
      for (int32_t second : operations[b]) {
        if (!before[second][first]) return false;
      }
    }
    return true;
  };
  for (size_t a = 0; a < arena.lifetimes.size(); ++a) {
    const Lifetime& x = arena.lifetimes[a];
    for (size_t b = a + 1; b < arena.lifetimes.size(); ++b) {
      const Lifetime& y = arena.lifetimes[b];
      if (x.bytes == 0 || y.bytes == 0) continue;
      // A kept buffer has one place, whatever a plan does with it.
      if (x.buffer == y.buffer && x.offset == kept.offset[x.buffer]) continue;
      if (x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset) continue;
      if (precedes(a, b) || precedes(b, a)) continue;
      return absl::StrCat("buffers ", x.buffer, " and ", y.buffer, " share bytes");
    }
  }
  return "";
}

// Empty, or what is wrong with the places of a plan's lifetimes, apart from conflicts.
std::string FindMisplaced(const KeptRegion& kept, const Arena& arena, const StepPlan& plan) {
  std::vector<bool> last_is_kept(plan.buffers.size(), false);
  for (const Lifetime& lifetime : arena.lifetimes) {
    const BufferSpec& spec = plan.buffers[lifetime.buffer];
    const int64_t begin = lifetime.offset;
    const int64_t end = begin + spec.elements * DtypeBytes(spec.dtype);
    const std::string where = absl::StrCat("buffer ", lifetime.buffer, " at ", begin, " to ", end);
    if (begin < 0 || begin % 256 != 0 || end > arena.total) return where;
    const int64_t home = kept.offset[lifetime.buffer];
    if (home >= 0 && begin != home) return absl::StrCat(where, " has left its home");
    last_is_kept[lifetime.buffer] = lifetime.to_end;
  }
  // Everything kept is there when the next step begins.
  for (size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
    if (kept.offset[buffer] >= 0 && !last_is_kept[buffer]) {
      return absl::StrCat("buffer ", buffer, " is lost");
    }
  }
  for (int32_t buffer : plan.live_before) {
    const bool there = std::any_of(
        arena.lifetimes.begin(), arena.lifetimes.end(),
        [&](const Lifetime& lifetime) { return lifetime.buffer == buffer && lifetime.from_start; });
    if (!there) return absl::StrCat("buffer ", buffer, " is not there when the step begins");
  }
  return "";
}

struct RankPlans {
  RankPlans(const RunDescription& run, Rank rank) {
    const Placement placement = MakePlacement(run);
    for (int64_t step : {0, 1}) plans.push_back(PlanStep(run, placement, rank, step));
    const StepPlan* const both[] = {&plans[0], &plans[1]};
    kept = LayOutKept(both);
    for (const StepPlan& plan : plans) {
      absl::StatusOr<Arena> arena = LayOutArena(kept, plan);
      EXPECT_TRUE(arena.ok()) << arena.status();
      arenas.push_back(*std::move(arena));
    }
  }
  const StepPlan& steady() const { return plans[1]; }
  const Arena& arena() const { return arenas[1]; }

  std::vector<StepPlan> plans;  // of the first step and of later ones
  KeptRegion kept;
  std::vector<Arena> arenas;
};

std::string Where(const RunDescription& run, int32_t rank) {
  return absl::StrCat(ModeRowName(run.sharding), " rank ", rank, " of ",
                      run.sharding.world_size.value);
}

void ExpectSound(const RunDescription& run) {
  const int32_t last = run.sharding.world_size.value - 1;
  for (int32_t rank : {0, last}) {
    const RankPlans rank_plans(run, Rank{rank});
    for (size_t i = 0; i < 2; ++i) {
      const StepPlan& plan = rank_plans.plans[i];
      const Arena& arena = rank_plans.arenas[i];
      EXPECT_EQ(FindConflict(rank_plans.kept, arena, plan), "") << Where(run, rank);
      EXPECT_EQ(FindMisplaced(rank_plans.kept, arena, plan), "") << Where(run, rank);
    }
  }
}

TEST(Arena, NothingSharesBytesUnlessItIsOrdered) {
  for (int32_t ranks : {1, 2, 3, 4}) {
    for (const char* model : {"mlp:33,65,17,129,7:bias", "probe:7x3,5,4,2x2"}) {
      for (const RunDescription& base :
           WithEveryGradSync(TestRun(model, Mode::kReplicated, ranks))) {
        for (const RunDescription& row : InEveryMode(base)) {
          for (const RunDescription& run : InEveryLayout(row)) ExpectSound(run);
        }
      }
    }
  }
}

TEST(Arena, AwkwardModelsToo) {
  for (const std::vector<ModelDescription>& models : {AwkwardProbes(), AwkwardMlps()}) {
    for (const ModelDescription& model : models) {
      RunDescription base = TestRun("probe:2", Mode::kReplicated, 3);
      base.model = model;
      for (const RunDescription& run : InEveryMode(base)) ExpectSound(run);
    }
  }
}

// Models whose tensors are 64 KiB and larger.
TEST(Arena, WastesAtMostTwoPercent) {
  for (const char* model : {"mlp:8x2048", "mlp:512,2048,256,1024,512,1536"}) {
    for (int32_t ranks : {2, 4, 8}) {
      for (const RunDescription& run : InEveryMode(TestRun(model, Mode::kReplicated, ranks))) {
        for (int32_t rank : {0, ranks - 1}) {
          const RankPlans plans(run, Rank{rank});
          std::printf("%-32s %s: peak %ld, arena %ld (%ld kept), waste %.3f %%\n", model,
                      Where(run, rank).c_str(), static_cast<long>(plans.arena().plan_peak),
                      static_cast<long>(plans.arena().total),
                      static_cast<long>(plans.arena().steady), 100 * plans.arena().waste());
          EXPECT_LE(plans.arena().waste(), 0.02) << model << " " << Where(run, rank);
          EXPECT_GE(plans.arena().waste(), 0) << model << " " << Where(run, rank);
          EXPECT_EQ(FindConflict(plans.kept, plans.arena(), plans.steady()), "");
        }
      }
    }
  }
}

// Units of full_shard live one after the other, so the arena is smaller than their sum.
TEST(Arena, MemoryIsSharedAtAll) {
  const RankPlans plans(TestRun("mlp:8x64", Mode::kFullShard, 4), Rank{0});
  int64_t sum = 0;
  for (const Lifetime& lifetime : plans.arena().lifetimes) sum += lifetime.bytes;
  EXPECT_LT(plans.arena().total - plans.arena().steady, sum / 2);
}

// A plan whose streams do not wait for each other orders next to nothing: in the arena of the
// whole plan, the test's search finds a conflict, and laid out for itself it takes more memory.
TEST(Arena, WithoutWaitsWhatSharedMemoryIsInConflict) {
  const RankPlans plans(TestRun("mlp:8x64", Mode::kFullShard, 4), Rank{0});
  StepPlan unordered = plans.steady();
  for (Op& op : unordered.ops) op.wait_count = 0;
  EXPECT_NE(FindConflict(plans.kept, plans.arena(), unordered), "");
  const absl::StatusOr<Arena> again = LayOutArena(plans.kept, unordered);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(FindConflict(plans.kept, *again, unordered), "");
  EXPECT_GT(again->total, plans.arena().total);
}

TEST(Arena, OverlapsAreFound) {
  RankPlans plans(TestRun("mlp:8x64", Mode::kZero2, 2), Rank{0});
  ASSERT_EQ(FindConflict(plans.kept, plans.arena(), plans.steady()), "");
  Arena heap = plans.arena();
  for (Lifetime& lifetime : heap.lifetimes) lifetime.offset = heap.steady;
  EXPECT_NE(FindConflict(plans.kept, heap, plans.steady()), "");
}

TEST(Arena, APlanThatKeepsMoreIsRefused) {
  const RankPlans plans(TestRun("mlp:8x64", Mode::kFullShard, 2), Rank{0});
  StepPlan forgets = plans.steady();
  const auto freed =
      std::find_if(forgets.accesses.begin(), forgets.accesses.end(), [&](const PlanAccess& access) {
        return access.kind == AccessKind::kFree && plans.kept.offset[access.buffer] < 0;
      });
  ASSERT_NE(freed, forgets.accesses.end());
  const int32_t buffer = freed->buffer;
  for (PlanAccess& access : forgets.accesses) {
    if (access.buffer == buffer && access.kind == AccessKind::kFree) {
      access.kind = AccessKind::kRead;
    }
  }
  const absl::Status status = LayOutArena(plans.kept, forgets).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(absl::StrCat("rank 0 keeps buffer ", buffer)),
            absl::string_view::npos)
      << status;
}

DeviceNeed NeedOfZero2() {
  DeviceNeed need = {Rank{3}, /*device=*/1, "zero2"};
  need.arena_steady = 3000;
  need.arena_total = 5000;
  need.workspace = 70;
  return need;
}

constexpr char kNeedOfZero2[] =
    "zero2 needs 5070 bytes a rank, of which 3000 are kept between steps, 2000 live within a step "
    "and 70 are workspace: use more ranks, a smaller model or a mode that shards more";

TEST(Arena, OutOfMemoryNamesWhatIsAskedWhatIsFreeAndWhatTheModeNeeds) {
  const absl::Status status = OutOfDeviceMemory(NeedOfZero2(), /*asked=*/2000, /*free=*/999);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      status.message(),
      absl::StrCat("rank 3 asked for 2000 bytes on GPU 1, which has 999 free: ", kNeedOfZero2));
}

// What is allocated beside the arena says itself what it asked for, and only that.
TEST(Arena, OutOfMemoryOfWorkspaceNamesWhatTheModeNeedsToo) {
  const absl::Status status = WithNeed(
      NeedOfZero2(), absl::ResourceExhaustedError("the layers' workspace needs 70 bytes on the "
                                                  "device, which has 9 of 10 bytes free"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            absl::StrCat("rank 3, GPU 1: the layers' workspace needs 70 bytes on the device, which "
                         "has 9 of 10 bytes free: ",
                         kNeedOfZero2));
  EXPECT_EQ(WithNeed(NeedOfZero2(), absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(WithNeed(NeedOfZero2(), absl::InternalError("lost")), absl::InternalError("lost"));
}

}  // namespace
}  // namespace shardproof
