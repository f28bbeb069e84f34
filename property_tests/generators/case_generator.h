// Random training runs that shrink to cases a person can read.
//
// Half of what is drawn is hostile on purpose, because uniform numbers rarely break sharding:
// extents 0, 1, one off the number of ranks, and primes; fewer elements than ranks; bucket caps
// of one tensor, of the whole model, and one element off both; tensors tied over units; frozen
// ends; tensors that one rank or one micro-batch uses; units that interleave.
#ifndef PROPERTY_TESTS_GENERATORS_CASE_GENERATOR_H_
#define PROPERTY_TESTS_GENERATORS_CASE_GENERATOR_H_

#include <cstdint>
#include <vector>

#include "property_tests/generators/case_spec.h"
#include "rapidcheck.h"

namespace shardproof {

// What is fixed; the rest is drawn. An empty list leaves the axis free.
struct CaseLimits {
  std::vector<Mode> modes;
  std::vector<Prefetch> prefetches;  // of full_shard
  std::vector<int32_t> world_sizes;
  int32_t max_layers = 5;
  int32_t max_width = 33;
  // Everything but MLP layers, one a unit, on one micro-batch with AdamW.
  bool all_features = true;
  // Probe models alone, whose sums are exact in any order; needs all_features.
  bool only_probes = false;
};

rc::Gen<CaseSpec> AnyCase(const CaseLimits& limits);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_GENERATORS_CASE_GENERATOR_H_
