// Job: the processes of one launch, one rank each, and what they say to each other beside
// collectives: small values by key, gathered observations, the roll call.
//
// Rank 0 serves, over TCP; the others connect to it. A process that ends or dies closes its
// connection, so that the others learn of it at their next call. Every wait is bounded. One
// thread of each process may also call from a second thread (a watchdog), while the first waits
// in a call. When rank 0 is known to be gone, every call of the others is Unavailable and says so.
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
#include "absl/types/span.h"
#include "collectives/launch/launch_environment.h"

namespace shardproof {

class Job {
 public:
  virtual ~Job() = default;
  virtual Rank rank() const = 0;
  virtual WorldSize world_size() const = 0;

  // Keys are free text, up to 64 KiB, and values up to 16 MiB: InvalidArgument beyond. A key that
  // is set again has the new value. Set does not wait for rank 0: OK does not say that the value
  // has arrived. What a process sends arrives in its order.
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // The value now; nothing if nobody has set it.
  virtual absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) = 0;
  // Waits for it. DeadlineExceeded names the key and `who_sets_it` (words for the message, such
  // as "rank 0"), and every rank whose process is known to be gone. Unavailable, at once, if nobody
  // is left to set it: `who_sets_it` is "rank N", just so, and that one is gone; or all others are.
  virtual absl::StatusOr<std::string> Await(absl::string_view key, absl::string_view who_sets_it,
                                            absl::Duration timeout) = 0;

  // Collective: every rank gives bytes, rank 0 gets all of them by rank, the others an empty
  // vector. No limit on their size but memory. DeadlineExceeded on rank 0 names the ranks that did
  // not give; Unavailable, at once, names ranks that are gone and did not. The others return when
  // rank 0's process has their bytes; DeadlineExceeded if it has not, or its own wait has ended.
  virtual absl::StatusOr<std::vector<std::string>> Gather(std::string bytes,
                                                          absl::Duration timeout) = 0;
  // The same with bytes that lie in pieces, one behind the other, which are not copied where they
  // leave the process. They may change when it returns, with an error too.
  virtual absl::StatusOr<std::vector<std::string>> GatherPieces(
      absl::Span<const absl::string_view> pieces, absl::Duration timeout);
  // On rank 0: gives what a gather returned back, as memory for what the same ranks give next. Only
  // a matter of speed: fresh memory of gigabytes costs more than to receive them.
  virtual void Reuse(std::vector<std::string> /*gathered*/) {}

  // Ranks whose connection to rank 0 has ended, as far as rank 0 knows.
  virtual absl::StatusOr<std::vector<Rank>> GoneRanks() = 0;
};

// Where rank 0 serves. Port 0: any free one. No host: on all interfaces; `bound` then gets the name
// of this machine. IPv4 and IPv6.
struct JobAddress {
  std::string host;
  int32_t port = 0;
};

// Rank 0: binds, and says through `bound` where, before it waits for the others.
// Others: connects to `address`. All: returns when all have joined, or DeadlineExceeded that names
// the ranks that have not (on rank 0) or the address that does not answer. `secret` keeps other
// jobs and other programs on the port out (it is no protection against who reads the network);
// equal on all ranks, up to 4096 bytes. Other errors:
//   InvalidArgument     a rank, size, port or host out of range
//   PermissionDenied    the job at the address has another secret
//   FailedPrecondition  rank 0 was told another world size
//   AlreadyExists       another process has joined as this rank; on rank 0: the port is held
//   Unavailable         rank 0 ended while ranks were joining
// and what `bound` returns. One rank alone needs no address: nothing is bound, `bound` not called.
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
// these in turn until one answers for this run: its id, MASTER_ADDR and MASTER_PORT are the secret.
// With all ranks on one machine it binds MASTER_ADDR, else all interfaces. Unavailable if no port
// is free.
absl::StatusOr<std::unique_ptr<Job>> JoinTorchrunJob(const LaunchEnvironment& environment,
                                                     absl::Duration timeout);

}  // namespace shardproof

#endif  // COLLECTIVES_LAUNCH_JOB_H_
