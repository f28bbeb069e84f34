// Small runs that tests of closed forms and checks share, with numbers easy to do by hand.
#ifndef INVARIANTS_CLOSED_FORMS_EXAMPLE_RUNS_H_
#define INVARIANTS_CLOSED_FORMS_EXAMPLE_RUNS_H_

#include <cstdint>
#include <vector>

#include "invariants/run_description/run_description.h"

namespace shardproof {

// A mode on `ranks` ranks: full_shard prefetches backward_pre, zero1_broadcast has owners.
ShardingDescription Sharding(Mode mode, int32_t ranks);

// Linear layers widths[0] -> widths[1] -> ...; each is a stage and a unit "layers.<i>" with
// "layers.<i>.weight" and, where `bias`, "layers.<i>.bias".
RunDescription MlpRun(const std::vector<int64_t>& widths, bool bias,
                      const ShardingDescription& sharding);

// The study's model: 8 bias-free Linear(2048), 16 MiB each, in buckets of 64 MiB.
RunDescription StudyRun(Mode mode, int32_t ranks);

// Units "units.<i>" of one stage and one tensor of shape [elements[i]].
RunDescription VectorRun(const std::vector<int64_t>& elements, const ShardingDescription& sharding);

}  // namespace shardproof

#endif  // INVARIANTS_CLOSED_FORMS_EXAMPLE_RUNS_H_
