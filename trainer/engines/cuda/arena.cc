#include "trainer/engines/cuda/arena.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/cuda/alignment.h"

namespace shardproof {
namespace {

// By stream, an operation of it; all earlier ones of the stream come before that one.
using OpOfStream = std::array<int32_t, kStreams>;

constexpr int32_t kNone = -1;
constexpr int32_t kAll = std::numeric_limits<int32_t>::max();

int64_t BytesOf(const BufferSpec& spec) { return spec.elements * DtypeBytes(spec.dtype); }

// Calls fn(buffer) for every buffer that an operation touches, at times more than once. What an
// operation computes with counts even where an edited plan does not declare it.
template <typename Fn>
void ForEachTouched(const StepPlan& plan, const Op& op, Fn fn) {
  const auto touch = [&](int32_t buffer) {
    if (buffer >= 0) fn(buffer);
  };
  for (const PlanAccess& access : plan.AccessesOf(op)) touch(access.buffer);
  touch(op.send.buffer);
  touch(op.recv.buffer);
  for (const SetUse& use : plan.ParameterUsesOf(op)) touch(use.buffer);
  for (const SetUse& use : plan.GradientUsesOf(op)) touch(use.buffer);
  for (const UpdateRange& update : plan.UpdatesOf(op)) {
    touch(update.parameter.buffer);
    touch(update.gradient.buffer);
    touch(update.exp_avg.buffer);
    touch(update.exp_avg_sq.buffer);
  }
}

// When the lifetimes of a plan are in use.
struct Uses {
  // By lifetime: the last operation of each stream that touches it; kNone: none does.
  std::vector<OpOfStream> last;
  // By lifetime: of each stream, the last operation that happens before all that touch it.
  std::vector<OpOfStream> before;

  void Add() {
    last.emplace_back().fill(kNone);
    before.emplace_back().fill(kAll);
  }
  void Touch(int32_t lifetime, int32_t op, int stream, const OpOfStream& clock) {
    last[lifetime][stream] = op;
    for (int other = 0; other < kStreams; ++other) {
      before[lifetime][other] = std::min(before[lifetime][other], clock[other]);
    }
  }
  // Whether all that touches `a` happens before all that touches `b`.
  bool Precedes(int32_t a, int32_t b) const {
    for (int stream = 0; stream < kStreams; ++stream) {
      if (last[a][stream] > before[b][stream]) return false;
    }
    return true;
  }
  bool Ordered(int32_t a, int32_t b) const { return Precedes(a, b) || Precedes(b, a); }
};

// Finds a plan's lifetimes, and when they are in use.
class LifetimeFinder {
 public:
  LifetimeFinder(const KeptRegion& kept, const StepPlan& plan, Arena& arena)
      : kept_(kept), plan_(plan), arena_(arena), current_(plan.buffers.size(), -1) {}

  Uses Find() {
    arena_.lifetime_of_access.assign(plan_.accesses.size(), -1);
    ended_.resize(plan_.ops.size());
    for (OpOfStream& clock : ended_) clock.fill(kNone);
    latest_.fill(kNone);
    BeginStep();
    for (size_t op = 0; op < plan_.ops.size(); ++op) Visit(static_cast<int32_t>(op));
    EndStep();
    return std::move(uses_);
  }

 private:
  // What is live from the start, or kept and never allocated.
  void BeginStep() {
    std::vector<bool> begins(plan_.buffers.size(), true);
    for (const PlanAccess& access : plan_.accesses) {
      if (access.kind == AccessKind::kAllocate) begins[access.buffer] = false;
    }
    for (int32_t buffer : plan_.live_before) begins[buffer] = true;
    for (size_t buffer = 0; buffer < begins.size(); ++buffer) {
      if (!begins[buffer] || kept_.offset[buffer] < 0) continue;
      const int32_t lifetime = Begin(static_cast<int32_t>(buffer));
      arena_.lifetimes[lifetime].from_start = true;
      uses_.before[lifetime].fill(kNone);
    }
  }

  void EndStep() {
    for (size_t buffer = 0; buffer < current_.size(); ++buffer) {
      if (kept_.offset[buffer] < 0 || current_[buffer] < 0) continue;
      arena_.lifetimes[current_[buffer]].to_end = true;
      uses_.last[current_[buffer]].fill(kAll);
    }
  }

  void Visit(int32_t index) {
    const Op& op = plan_.ops[index];
    const int stream = static_cast<int>(op.stream);
    OpOfStream clock = ClockOf(op);
    for (int32_t i = op.first_access; i < op.first_access + op.access_count; ++i) {
      const PlanAccess& access = plan_.accesses[i];
      if (access.kind == AccessKind::kAllocate) {
        arena_.lifetime_of_access[i] = Begin(access.buffer);
      }
    }
    ForEachTouched(plan_, op, [&](int32_t buffer) {
      if (current_[buffer] < 0) Begin(buffer);
      uses_.Touch(current_[buffer], index, stream, clock);
    });
    clock[stream] = index;
    ended_[index] = clock;
    latest_[stream] = index;
  }

  // What has ended, of each stream, before the operation begins: a vector clock.
  OpOfStream ClockOf(const Op& op) const {
    const int32_t previous = latest_[static_cast<int>(op.stream)];
    OpOfStream clock;
    clock.fill(kNone);
    if (previous >= 0) clock = ended_[previous];
    for (int32_t wait : plan_.WaitsOf(op)) {
      for (int other = 0; other < kStreams; ++other) {
        clock[other] = std::max(clock[other], ended_[wait][other]);
      }
    }
    return clock;
  }

  int32_t Begin(int32_t buffer) {
    current_[buffer] = static_cast<int32_t>(arena_.lifetimes.size());
    Lifetime lifetime;
    lifetime.buffer = buffer;
    lifetime.offset = kept_.offset[buffer];
    lifetime.bytes = BytesOf(plan_.buffers[buffer]);
    arena_.lifetimes.push_back(lifetime);
    uses_.Add();
    return current_[buffer];
  }

  const KeptRegion& kept_;
  const StepPlan& plan_;
  Arena& arena_;
  Uses uses_;
  std::vector<int32_t> current_;   // by buffer: its latest lifetime
  std::vector<OpOfStream> ended_;  // by operation: what has ended once it has
  OpOfStream latest_;              // by stream
};

// Follows a plan's allocations in issue order.
struct Liveness {
  std::vector<bool> at_end;  // by buffer
  int64_t peak = 0;          // bytes
  int64_t aligned_peak = 0;  // the same of buffers that are aligned: no arena is smaller
};

Liveness LivenessOf(const StepPlan& plan) {
  Liveness result;
  result.at_end.assign(plan.buffers.size(), false);
  int64_t live = 0;
  int64_t aligned = 0;
  const auto set = [&](int32_t buffer, bool alive) {
    if (result.at_end[buffer] == alive) return;
    result.at_end[buffer] = alive;
    const int64_t bytes = BytesOf(plan.buffers[buffer]);
    live += alive ? bytes : -bytes;
    aligned += alive ? AlignedBytes(bytes) : -AlignedBytes(bytes);
    result.peak = std::max(result.peak, live);
    result.aligned_peak = std::max(result.aligned_peak, aligned);
  };
  for (int32_t buffer : plan.live_before) set(buffer, true);
  for (const Op& op : plan.ops) {
    for (const PlanAccess& access : plan.AccessesOf(op)) {
      if (access.kind == AccessKind::kAllocate) set(access.buffer, true);
    }
    for (const PlanAccess& access : plan.AccessesOf(op)) {
      if (access.kind == AccessKind::kFree) set(access.buffer, false);
    }
  }
  return result;
}

void MarkKept(const StepPlan& plan, const Liveness& liveness, std::vector<bool>& kept) {
  for (int32_t buffer : plan.live_before) kept[buffer] = true;
  for (size_t buffer = 0; buffer < kept.size(); ++buffer) {
    if (liveness.at_end[buffer]) kept[buffer] = true;
  }
  for (const SetHome& home : plan.homes) {
    for (int32_t buffer : {home.parameter, home.gradient, home.exp_avg, home.exp_avg_sq}) {
      if (buffer >= 0) kept[buffer] = true;
    }
  }
}

// splitmix64 (Steele, Lea and Flood 2014), from a fixed seed: the same plan, the same arena.
class SearchRandom {
 public:
  size_t Below(size_t bound) {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return static_cast<size_t>((z ^ (z >> 31)) % bound);
  }

 private:
  uint64_t state_ = 0;
};

// Puts the lifetimes of what is not kept down one by one, each as low as those that it may not
// overlap allow, in the best order that it finds.
class Placer {
 public:
  Placer(const KeptRegion& kept, const Uses& uses, Arena& arena)
      : kept_(kept), uses_(uses), arena_(arena), in_the_way_(arena.lifetimes.size()) {
    const int32_t count = static_cast<int32_t>(arena.lifetimes.size());
    for (int32_t i = 0; i < count; ++i) {
      fixed_.push_back(kept.offset[arena.lifetimes[i].buffer] >= 0);
      if (fixed_[i]) continue;
      moved_.push_back(i);
      for (int32_t j = 0; j < count; ++j) {
        if (i != j && Size(j) > 0 && !uses.Ordered(i, j)) in_the_way_[i].push_back(j);
      }
    }
  }

  // Fills in offsets and total. `floor`: no arena is smaller.
  void Place(int64_t floor) {
    arena_.total = std::numeric_limits<int64_t>::max();
    std::vector<int32_t> best;
    for (std::vector<int32_t>& order : Orders()) {
      const int64_t total = Place(order);
      if (total >= arena_.total) continue;
      arena_.total = total;
      best = std::move(order);
    }
    Search(floor, best);
    Place(best);
  }

 private:
  // Where less is to be won, or fewer bytes in all, nobody would notice.
  static constexpr double kGoodEnough = 1.01;
  static constexpr int64_t kSmall = 1 << 20;
  // Comparisons of two lifetimes: some tenths of a second.
  static constexpr int64_t kEffort = 10'000'000;

  // Moves one lifetime after another to another place in the order, every second time one that
  // reaches the top to an earlier place, and keeps what is no worse.
  void Search(int64_t floor, std::vector<int32_t>& best) {
    const int64_t count = static_cast<int64_t>(moved_.size());
    if (count < 2 || arena_.total < kSmall) return;
    SearchRandom random;
    Place(best);
    size_t top = Highest(best);
    for (int64_t tries = kEffort / (count * count); tries > 0; --tries) {
      if (static_cast<double>(arena_.total) <= kGoodEnough * static_cast<double>(floor)) return;
      std::vector<int32_t> order = best;
      const bool lowers = tries % 2 == 0 && top > 0;
      const size_t from = lowers ? top : random.Below(order.size());
      const size_t to = random.Below(lowers ? top : order.size());
      const int32_t lifetime = order[from];
      order.erase(order.begin() + static_cast<std::ptrdiff_t>(from));
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(to), lifetime);
      const int64_t total = Place(order);
      if (total > arena_.total) continue;
      arena_.total = total;
      best = std::move(order);
      top = Highest(best);
    }
  }

  // The place in the order of a lifetime that reaches the top, as placed last.
  size_t Highest(const std::vector<int32_t>& order) const {
    const auto end = [&](int32_t l) { return arena_.lifetimes[l].offset + Size(l); };
    const auto highest = std::max_element(order.begin(), order.end(),
                                          [&](int32_t a, int32_t b) { return end(a) < end(b); });
    return static_cast<size_t>(highest - order.begin());
  }

  int64_t Size(int32_t lifetime) const { return AlignedBytes(arena_.lifetimes[lifetime].bytes); }
  int32_t Begin(int32_t lifetime) const {
    const OpOfStream& before = uses_.before[lifetime];
    return *std::max_element(before.begin(), before.end());
  }
  int32_t End(int32_t lifetime) const {
    const OpOfStream& last = uses_.last[lifetime];
    return *std::max_element(last.begin(), last.end());
  }

  // Orders in which first fit does well: large first, long-lived first, by time, large and
  // long-lived first, latest end first; ties by time.
  std::vector<std::vector<int32_t>> Orders() const {
    const auto sorted = [](std::vector<int32_t> order, auto key) {
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return key(a) < key(b); });
      return order;
    };
    const auto length = [&](int32_t l) { return int64_t{End(l)} - Begin(l) + 1; };
    const auto by_time = sorted(moved_, [&](int32_t l) { return Begin(l); });
    return {
        sorted(by_time, [&](int32_t l) { return -Size(l); }),
        sorted(by_time, [&](int32_t l) { return -length(l); }),
        by_time,
        sorted(by_time, [&](int32_t l) { return -Size(l) * length(l); }),
        sorted(by_time, [&](int32_t l) { return -End(l); }),
    };
  }

  // Returns the arena's bytes.
  int64_t Place(const std::vector<int32_t>& order) {
    int64_t total = kept_.bytes;
    placed_ = fixed_;
    for (const int32_t lifetime : order) {
      const int64_t offset = LowestPlace(lifetime);
      arena_.lifetimes[lifetime].offset = offset;
      placed_[lifetime] = true;
      total = std::max(total, offset + Size(lifetime));
    }
    return total;
  }

  int64_t LowestPlace(int32_t lifetime) {
    taken_.clear();
    for (const int32_t other : in_the_way_[lifetime]) {
      if (!placed_[other]) continue;
      const int64_t begin = arena_.lifetimes[other].offset;
      taken_.emplace_back(begin, begin + Size(other));
    }
    std::sort(taken_.begin(), taken_.end());
    int64_t offset = 0;
    for (const auto& [begin, end] : taken_) {
      if (begin >= offset + Size(lifetime)) break;
      offset = std::max(offset, end);
    }
    return offset;
  }

  const KeptRegion& kept_;
  const Uses& uses_;
  Arena& arena_;
  std::vector<int32_t> moved_;                      // lifetimes of what is not kept
  std::vector<bool> fixed_;                         // by lifetime: of a kept buffer
  std::vector<bool> placed_;                        // by lifetime
  std::vector<std::vector<int32_t>> in_the_way_;    // by lifetime: those it may not overlap
  std::vector<std::pair<int64_t, int64_t>> taken_;  // begin and end
};

// By buffer: 0 if no plan frees it within a step, else one more than its last allocation's place
// among the last plan's accesses.
std::vector<int32_t> AllocatedLast(absl::Span<const StepPlan* const> plans) {
  std::vector<int32_t> place(plans[0]->buffers.size(), 0);
  std::vector<bool> freed(place.size(), false);
  for (const StepPlan* plan : plans) {
    for (size_t i = 0; i < plan->accesses.size(); ++i) {
      const PlanAccess& access = plan->accesses[i];
      if (access.kind == AccessKind::kFree) freed[access.buffer] = true;
      if (access.kind == AccessKind::kAllocate) place[access.buffer] = static_cast<int32_t>(i) + 1;
    }
  }
  for (size_t buffer = 0; buffer < place.size(); ++buffer) {
    if (!freed[buffer]) place[buffer] = 0;
  }
  return place;
}

absl::Status CheckKept(const KeptRegion& kept, const StepPlan& plan, const Liveness& liveness) {
  std::vector<bool> keeps(plan.buffers.size(), false);
  MarkKept(plan, liveness, keeps);
  for (size_t buffer = 0; buffer < keeps.size(); ++buffer) {
    if (!keeps[buffer] || kept.offset[buffer] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the plan of rank ", plan.rank.value, " keeps buffer ", buffer,
                     " between steps; accepted: what the rank's first two plans keep"));
  }
  return absl::OkStatus();
}

KeptRegion PutInOrder(const StepPlan& plan, absl::Span<const int32_t> order) {
  KeptRegion kept;
  kept.offset.assign(plan.buffers.size(), -1);
  for (const int32_t buffer : order) {
    kept.offset[buffer] = kept.bytes;
    kept.bytes += AlignedBytes(BytesOf(plan.buffers[buffer]));
  }
  return kept;
}

int64_t LargestArena(const KeptRegion& kept, absl::Span<const StepPlan* const> plans) {
  int64_t largest = 0;
  for (const StepPlan* plan : plans) {
    const absl::StatusOr<Arena> arena = LayOutArena(kept, *plan);
    if (arena.ok()) largest = std::max(largest, arena->total);
  }
  return largest;
}

}  // namespace

double Arena::waste() const {
  if (plan_peak == 0) return 0;
  return static_cast<double>(total) / static_cast<double>(plan_peak) - 1;
}

KeptRegion LayOutKept(absl::Span<const StepPlan* const> plans) {
  std::vector<bool> keeps(plans[0]->buffers.size(), false);
  for (const StepPlan* plan : plans) MarkKept(*plan, LivenessOf(*plan), keeps);
  // What a step frees and allocates again lies at the end, where it makes one piece with the
  // memory beyond for as long as a step goes without it. Which end of it comes back first is tried.
  const std::vector<int32_t> allocated = AllocatedLast(plans);
  KeptRegion best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const int direction : {1, -1}) {
    std::vector<int32_t> order;
    for (size_t buffer = 0; buffer < keeps.size(); ++buffer) {
      if (keeps[buffer]) order.push_back(static_cast<int32_t>(buffer));
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const bool late_a = allocated[a] > 0;
      const bool late_b = allocated[b] > 0;
      if (late_a != late_b) return late_b;
      return direction * allocated[a] < direction * allocated[b];
    });
    KeptRegion kept = PutInOrder(*plans[0], order);
    const int64_t total = LargestArena(kept, plans);
    if (total >= least) continue;
    least = total;
    best = std::move(kept);
  }
  return best;
}

absl::StatusOr<Arena> LayOutArena(const KeptRegion& kept, const StepPlan& plan) {
  const Liveness liveness = LivenessOf(plan);
  SHARDPROOF_RETURN_IF_ERROR(CheckKept(kept, plan, liveness));
  Arena arena;
  arena.steady = kept.bytes;
  arena.plan_peak = liveness.peak;
  const Uses uses = LifetimeFinder(kept, plan, arena).Find();
  Placer(kept, uses, arena).Place(std::max(liveness.aligned_peak, kept.bytes));
  return arena;
}

bool SameBuffers(const StepPlan& a, const StepPlan& b) {
  return std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    [](const BufferSpec& x, const BufferSpec& y) {
                      return x.dtype == y.dtype && x.elements == y.elements;
                    });
}

namespace {

std::string DescribeNeed(const DeviceNeed& need) {
  return absl::StrCat(need.mode, " needs ", need.arena_total + need.workspace,
                      " bytes a rank, of which ", need.arena_steady, " are kept between steps, ",
                      need.arena_total - need.arena_steady, " live within a step and ",
                      need.workspace,
                      " are workspace: use more ranks, a smaller model or a mode that shards more");
}

}  // namespace

absl::Status OutOfDeviceMemory(const DeviceNeed& need, int64_t asked, int64_t free) {
  return absl::ResourceExhaustedError(absl::StrCat("rank ", need.rank.value, " asked for ", asked,
                                                   " bytes on GPU ", need.device, ", which has ",
                                                   free, " free: ", DescribeNeed(need)));
}

absl::Status WithNeed(const DeviceNeed& need, const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::ResourceExhaustedError(absl::StrCat("rank ", need.rank.value, ", GPU ", need.device,
                                                   ": ", status.message(), ": ",
                                                   DescribeNeed(need)));
}

}  // namespace shardproof
