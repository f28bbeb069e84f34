// Job: the processes of one launch, one rank each, and what they say to each other beside
// collectives: small values by key, gathered observations, the roll call.
//
// Rank 0 serves, over TCP; the others connect to it. A process that ends or dies closes its
// connection, so that the others learn of it at their next call. Every wait is bounded. One
// thread of each process may also call from a second thread (a watchdog): calls are serialized.
#ifndef COLLECTIVES_LAUNCH_JOB_H_
#define COLLECTIVES_LAUNCH_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/launch/launch_environment.h"

namespace shardproof {

class Job {
 public:
  virtual ~Job() = default;
  virtual Rank rank() const = 0;
  virtual WorldSize world_size() const = 0;

  // Keys are free text. A key that is set again has the new value.
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // The value now; nothing if nobody has set it.
  virtual absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) = 0;
  // Waits for it. DeadlineExceeded names the key and `who_sets_it` (words for the message, such
  // as "rank 0"), and every rank whose process is known to be gone.
  virtual absl::StatusOr<std::string> Await(absl::string_view key, absl::string_view who_sets_it,
                                            absl::Duration timeout) = 0;

  // Collective: every rank gives bytes, rank 0 gets all of them by rank, the others an empty
  // vector. No limit on their size but memory. DeadlineExceeded on rank 0 names the ranks that did
  // not give; Unavailable names ranks that are gone.
  virtual absl::StatusOr<std::vector<std::string>> Gather(std::string bytes,
                                                          absl::Duration timeout) = 0;

  // Ranks whose connection to rank 0 has ended, as far as rank 0 knows.
  virtual absl::StatusOr<std::vector<Rank>> GoneRanks() = 0;
};

// Where rank 0 serves. Port 0: any free one.
struct JobAddress {
  std::string host;
  int32_t port = 0;
};

// Rank 0: binds, and says through `bound` where, before it waits for the others.
// Others: connects to `address`. All: returns when all have joined, or DeadlineExceeded that names
// the ranks that have not (on rank 0) or the address that does not answer. `secret` keeps other
// jobs and other programs on the port out; equal on all ranks.
struct JobOptions {
  Rank rank;
  WorldSize world_size = WorldSize{1};
  JobAddress address;
  std::string secret;
  absl::Duration timeout = absl::Seconds(60);
};
absl::StatusOr<std::unique_ptr<Job>> JoinJob(
    const JobOptions& options, const std::function<absl::Status(const JobAddress&)>& bound);

// Under torchrun: rank 0 binds the first free port of the 16 after MASTER_PORT; the others try
// these in turn until one answers with the run's id.
absl::StatusOr<std::unique_ptr<Job>> JoinTorchrunJob(const LaunchEnvironment& environment,
                                                     absl::Duration timeout);

}  // namespace shardproof

#endif  // COLLECTIVES_LAUNCH_JOB_H_
