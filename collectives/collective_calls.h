// What the calls of one collective mean, whatever moves the bytes: which are valid, when two
// members mean the same, and the words in which messages name ranks and calls.
#ifndef COLLECTIVES_COLLECTIVE_CALLS_H_
#define COLLECTIVES_COLLECTIVE_CALLS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// InvalidArgument for a group that is not one of a world of `size` ranks, or that `rank` is
// outside of.
absl::Status ValidateMembership(WorldSize size, Rank rank, const Group& group);

// InvalidArgument for what Communicator::Start refuses: see there. Dtypes: float32 and float64,
// what `world` (words for the message, such as "the simulated world") moves. `rank` is in the
// group.
absl::Status ValidateCall(const Group& group, Rank rank, const CollectiveCall& call,
                          absl::string_view world);

// Whether two members mean the same collective. Dtype and elements of a barrier, the root of
// anything but a broadcast, buffers and labels are not compared.
bool Agree(const CollectiveCall& a, const CollectiveCall& b);

// calls[i] is what member i called at `position`. OK if all agree, else FailedPrecondition that
// names the ranks, what they called and the position.
absl::Status CheckAgreement(const Group& group, int64_t position,
                            absl::Span<const CollectiveCall> calls);

// "rank 7", "ranks 0, 2, 4", and from nine ranks on "ranks 0, 1, 2, 3, ..., 511 (512 ranks)".
std::string DescribeRanks(absl::Span<const Rank> ranks);
std::string DescribeRanks(const Group& group);

// "all_reduce of 12 float32 (label 3)", "broadcast of 4 float32 from rank 2 (label 0)",
// "barrier (label -1)".
std::string DescribeCall(const CollectiveCall& call);

// One line, without its end: who waits in what at `position`, and who has not arrived. `arrived`
// holds a member's rank and what it called.
std::string DescribeArrivals(const Group& group, int64_t position,
                             absl::Span<const std::pair<Rank, CollectiveCall>> arrived,
                             absl::Span<const Rank> missing);

}  // namespace shardproof

#endif  // COLLECTIVES_COLLECTIVE_CALLS_H_
