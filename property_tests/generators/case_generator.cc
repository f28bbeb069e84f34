#include "property_tests/generators/case_generator.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace shardproof {
namespace {

constexpr Mode kModes[] = {Mode::kReplicated, Mode::kZero1Broadcast, Mode::kZero1AllGather,
                           Mode::kZero2,      Mode::kShardGradOp,    Mode::kFullShard};
constexpr Prefetch kPrefetches[] = {Prefetch::kBackwardPre, Prefetch::kBackwardPost,
                                    Prefetch::kNone};
constexpr LayoutKind kLayouts[] = {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows,
                                   LayoutKind::kOwner};
constexpr int32_t kPrimes[] = {2, 3, 5, 7, 11, 13, 17, 31};
constexpr int32_t kWorldSizes[] = {1, 2, 3, 4, 5, 8};
constexpr StepUse kStepUses[] = {StepUse::kNever, StepUse::kOdd, StepUse::kEven, StepUse::kEvery};
constexpr CapRelation kCapRelations[] = {CapRelation::kElements, CapRelation::kTensor,
                                         CapRelation::kModel};

// RapidCheck begins with small sizes; what is only a choice is drawn alike at every one.
template <typename T>
rc::Gen<T> AtAnySize(rc::Gen<T> gen) {
  return rc::gen::resize(rc::kNominalSize, std::move(gen));
}

// Shrinks to the first. (rapidcheck's elementOf does not shrink.)
template <typename T>
rc::Gen<T> OneOf(std::vector<T> values) {
  const size_t count = values.size();
  return rc::gen::map(AtAnySize(rc::gen::inRange<size_t>(0, count)),
                      [values = std::move(values)](size_t index) { return values[index]; });
}

template <typename T, size_t n>
rc::Gen<T> OneOf(const std::vector<T>& allowed, const T (&all)[n]) {
  return OneOf(allowed.empty() ? std::vector<T>(all, all + n) : allowed);
}

// True once in `one_in`.
rc::Gen<bool> Flag(bool drawn, int32_t one_in = 2) {
  if (!drawn) return rc::gen::just(false);
  return rc::gen::map(AtAnySize(rc::gen::inRange(0, one_in)),
                      [one_in](int32_t value) { return value == one_in - 1; });
}

// A number of [least, most] (0 at least) that comes from `draw` and shrinks to `target`.
template <typename Draw>
rc::Gen<int32_t> Number(int32_t target, Draw draw) {
  return [target, draw](const rc::Random& random, int size) {
    rc::Random rest = random;
    return rc::shrinkable::shrinkRecur(
        draw(rest, size), [target](int32_t value) { return rc::shrink::towards(value, target); });
  };
}

// Of [0, count).
int32_t Choice(rc::Random& random, int32_t count) {
  return static_cast<int32_t>(random.split().next() % static_cast<uint64_t>(count));
}

// Once in `one_in` a list of up to `most`, else an empty one. Shrinks by leaving entries out.
template <typename T>
rc::Gen<std::vector<T>> Few(rc::Gen<T> gen, int32_t most, int32_t one_in) {
  const rc::Gen<std::vector<T>> list =
      rc::gen::container<std::vector<T>>(AtAnySize(std::move(gen)));
  return [list, most, one_in](const rc::Random& random, int) {
    rc::Random rest = random;
    const bool drawn = Choice(rest, one_in) == 0;
    return list(rest, drawn ? most : 0);
  };
}

// The two choices that everything else is drawn for.
struct Ground {
  std::vector<int32_t> world_sizes;  // of which the index-th is drawn
  size_t index = 0;
  bool probe = false;
  int32_t world_size() const { return world_sizes[index]; }
};

// What breaks sharding: the edges of dealing an extent out to ranks, primes, nothing at all.
// The other half grows with the size that RapidCheck asks for.
rc::Gen<int32_t> Extent(const Ground& ground, const CaseLimits& limits) {
  return Number(1, [world_size = ground.world_size(), probe = ground.probe,
                    most = limits.max_width](rc::Random& random, int size) {
    const int32_t edges[] = {1, world_size - 1, world_size, world_size + 1, 2 * world_size + 1};
    const int32_t kind = Choice(random, 16);
    if (probe && kind >= 14) return 0;
    if (kind >= 12) return std::min(kPrimes[Choice(random, std::size(kPrimes))], most);
    if (kind >= 6) return std::clamp(edges[Choice(random, std::size(edges))], 1, most);
    const int32_t scaled = std::max(1, most * std::min(size, rc::kNominalSize) / rc::kNominalSize);
    return 1 + Choice(random, scaled);
  });
}

// As many as layers ask for, twice that for a probe's shapes; the extents, not their number,
// grow with the size. One of two short lists is drawn again: a tensor alone meets nothing.
rc::Gen<std::vector<int32_t>> Widths(const Ground& ground, const CaseLimits& limits) {
  const int32_t most = (limits.max_layers + 1) * (ground.probe ? 2 : 1);
  return [extent = Extent(ground, limits), most](const rc::Random& random, int size) {
    const rc::Gen<std::vector<int32_t>> list =
        rc::gen::container<std::vector<int32_t>>(rc::gen::resize(size, extent));
    rc::Random rest = random;
    rc::Shrinkable<std::vector<int32_t>> first = list(rest.split(), most);
    if (first.value().size() > 3 || Choice(rest, 2) == 0) return first;
    return list(rest, most);
  };
}

// One of the first twelve, or the last.
rc::Gen<int32_t> Place() {
  return Number(0, [](rc::Random& random, int) {
    const int32_t kind = Choice(random, 3);
    return kind == 0 ? 0 : kind == 1 ? -1 : Choice(random, 12);
  });
}

rc::Gen<TieSpec> AnyTie() {
  return rc::gen::build<TieSpec>(rc::gen::set(&TieSpec::kept, Place()),
                                 rc::gen::set(&TieSpec::tied, Place()),
                                 rc::gen::set(&TieSpec::next_too, Flag(true, 3)));
}

rc::Gen<UsageSpec> AnyUsage(int32_t world_size) {
  return rc::gen::build<UsageSpec>(rc::gen::set(&UsageSpec::tensor, Place()),
                                   rc::gen::set(&UsageSpec::rank, rc::gen::inRange(-1, world_size)),
                                   rc::gen::set(&UsageSpec::micro_batch, rc::gen::inRange(-1, 3)),
                                   rc::gen::set(&UsageSpec::steps, OneOf<StepUse>({}, kStepUses)));
}

rc::Gen<GroupSpec> AnyGroup() {
  return rc::gen::build<GroupSpec>(
      rc::gen::set(&GroupSpec::tensors, Few(Place(), 3, 1)),
      rc::gen::set(&GroupSpec::changes, AtAnySize(rc::gen::inRange(1, 16))));
}

// A few elements, about as many as a layer has, more than any model here; or in relation to the
// model.
rc::Gen<CapSpec> AnyCap(bool drawn) {
  const rc::Gen<int32_t> number = Number(1, [](rc::Random& random, int) {
    const int32_t kind = Choice(random, 3);
    return kind == 0 ? 1 + Choice(random, 7) : kind == 1 ? 1 + Choice(random, 1200) : 1 << 20;
  });
  return rc::gen::build<CapSpec>(
      rc::gen::set(&CapSpec::relation, drawn ? OneOf<CapRelation>({}, kCapRelations)
                                             : rc::gen::just(CapRelation::kElements)),
      rc::gen::set(&CapSpec::number, number),
      rc::gen::set(&CapSpec::off,
                   drawn ? AtAnySize(OneOf<int32_t>({0, 1, -1})) : rc::gen::just<int32_t>(0)));
}

// Half of the stages have a unit of their own; the others join the one before or one further
// back.
rc::Gen<int32_t> Join() {
  return Number(0, [](rc::Random& random, int) { return std::max(0, Choice(random, 6) - 2); });
}

// The value that the ground has, and smaller ones to shrink to.
rc::Gen<int32_t> DrawnWorldSize(const Ground& ground) {
  const rc::Gen<size_t> index = [drawn = ground.index](const rc::Random&, int) {
    return rc::shrinkable::shrinkRecur(
        drawn, [](size_t value) { return rc::shrink::towards(value, size_t{0}); });
  };
  return rc::gen::map(index, [sizes = ground.world_sizes](size_t at) { return sizes[at]; });
}

rc::Gen<bool> DrawnProbe(const Ground& ground, const CaseLimits& limits) {
  if (!ground.probe || limits.only_probes) return rc::gen::just(ground.probe);
  return [](const rc::Random&, int) {
    return rc::shrinkable::shrinkRecur(true, [](bool value) { return rc::shrink::boolean(value); });
  };
}

rc::Gen<CaseSpec> AnyCaseOn(const Ground& ground, const CaseLimits& limits) {
  const bool all = limits.all_features;
  const auto few = [](bool drawn, auto gen, int32_t most, int32_t one_in) {
    return Few(std::move(gen), drawn ? most : 0, one_in);
  };
  return rc::gen::build<CaseSpec>(
      rc::gen::set(&CaseSpec::world_size, DrawnWorldSize(ground)),
      rc::gen::set(&CaseSpec::probe, DrawnProbe(ground, limits)),
      rc::gen::set(&CaseSpec::ties, few(all, AnyTie(), 3, 3)),
      rc::gen::set(&CaseSpec::usage, few(ground.probe, AnyUsage(ground.world_size()), 3, 2)),
      rc::gen::set(&CaseSpec::groups, few(all, AnyGroup(), 2, 3)),
      rc::gen::set(&CaseSpec::clip,
                   all ? AtAnySize(OneOf<int32_t>({0, 0, 0, 1, 2, 3})) : rc::gen::just<int32_t>(0)),
      rc::gen::set(&CaseSpec::frozen, few(all, Place(), 3, 3)),
      rc::gen::set(&CaseSpec::widths, Widths(ground, limits)),
      rc::gen::set(&CaseSpec::bias, Flag(true)),
      rc::gen::set(&CaseSpec::joins, few(all, Join(), 6, 1)),
      rc::gen::set(&CaseSpec::root, Flag(all, 4)),
      rc::gen::set(&CaseSpec::unsharded, few(all, Place(), 2, 3)),
      rc::gen::set(&CaseSpec::mode, OneOf(limits.modes, kModes)),
      rc::gen::set(&CaseSpec::prefetch, OneOf(limits.prefetches, kPrefetches)),
      rc::gen::set(&CaseSpec::layout, OneOf<LayoutKind>({}, kLayouts)),
      rc::gen::set(&CaseSpec::cap, AnyCap(all)),
      rc::gen::set(&CaseSpec::micro_batch_size, rc::gen::inRange(1, 5)),
      rc::gen::set(&CaseSpec::num_micro_batches,
                   all ? AtAnySize(rc::gen::inRange(1, 4)) : rc::gen::just<int32_t>(1)),
      rc::gen::set(&CaseSpec::sync_last, Flag(all)),
      rc::gen::set(&CaseSpec::keep_unsharded, Flag(all)),
      rc::gen::set(&CaseSpec::bucket_view, Flag(all)),
      rc::gen::set(&CaseSpec::scale_before, Flag(all)), rc::gen::set(&CaseSpec::sgd, Flag(all)),
      rc::gen::set(&CaseSpec::no_momentum, Flag(all)),
      rc::gen::set(&CaseSpec::large_rate, Flag(ground.probe, 4)),
      rc::gen::set(&CaseSpec::weight_decay_hundredths, AtAnySize(rc::gen::inRange(0, 3))),
      rc::gen::set(&CaseSpec::seed, rc::gen::inRange(1, 1 << 30)));
}

}  // namespace

// Ranks and the kind of model come first: extents, users and owners are drawn for them.
rc::Gen<CaseSpec> AnyCase(const CaseLimits& limits) {
  Ground ground;
  ground.world_sizes = limits.world_sizes;
  if (ground.world_sizes.empty()) {
    ground.world_sizes.assign(std::begin(kWorldSizes), std::end(kWorldSizes));
  }
  std::vector<rc::Gen<CaseSpec>> cases;
  for (ground.index = 0; ground.index < ground.world_sizes.size(); ++ground.index) {
    for (const bool probe : {false, true}) {
      ground.probe = limits.all_features && (probe || limits.only_probes);
      cases.push_back(AnyCaseOn(ground, limits));
    }
  }
  return [cases](const rc::Random& random, int size) {
    rc::Random rest = random;
    const int32_t drawn = Choice(rest, static_cast<int32_t>(cases.size()));
    return cases[drawn](rest, size);
  };
}

}  // namespace shardproof
