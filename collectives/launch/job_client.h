// The side of a job of every rank but 0: how it finds rank 0, and its calls over one connection.
#ifndef COLLECTIVES_LAUNCH_JOB_CLIENT_H_
#define COLLECTIVES_LAUNCH_JOB_CLIENT_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/launch/connection.h"
#include "collectives/launch/deadline.h"
#include "collectives/launch/sockets.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// Where rank 0 may be: at one of `ports` of `host`. With several ports other jobs and programs may
// answer at some: those are passed over.
struct JobSearch {
  std::string host;
  std::vector<int32_t> ports;
  Rank rank;
  WorldSize world_size;
  std::string secret;
  absl::Duration timeout;
};

class JobClient {
 public:
  // Tries the ports in turn until rank 0 takes this rank, then waits until all ranks have joined.
  //   DeadlineExceeded    within the timeout no rank 0 answered, or not all ranks joined
  //   PermissionDenied    another job answers at the only port
  //   FailedPrecondition  rank 0 was told another world size
  //   AlreadyExists       another process has joined as this rank
  //   Unavailable         rank 0 ended while ranks were joining
  static absl::StatusOr<std::unique_ptr<JobClient>> Join(const JobSearch& search);
  // Sends what waits to be sent, for a bounded time.
  ~JobClient();

  // As those of Job. Unavailable if rank 0 is gone.
  absl::Status Set(absl::string_view key, absl::string_view value);
  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key);
  absl::StatusOr<std::string> Await(absl::string_view key, absl::string_view who_sets_it,
                                    absl::Duration timeout);
  absl::Status Gather(absl::Span<const absl::string_view> pieces, absl::Duration timeout);
  absl::StatusOr<std::vector<Rank>> GoneRanks();

 private:
  // A call waits for its reply.
  using Replies = std::map<uint64_t, std::optional<absl::StatusOr<std::string>>>;

  JobClient(std::unique_ptr<Connection> connection, WakeEvent wake);

  void Queue(Message message, absl::Span<const absl::string_view> pieces = {});
  absl::StatusOr<std::string> Call(MessageType type, std::string body, absl::Duration timeout,
                                   absl::string_view what,
                                   absl::Span<const absl::string_view> pieces = {});
  void Run();
  bool FinishTurn(const absl::Status& received, std::vector<Message> messages);

  const std::unique_ptr<Connection> connection_;
  const WakeEvent wake_;

  std::mutex mutex_;
  std::condition_variable changed_;  // replies_ or ended_
  uint64_t next_id_ = 1;
  Replies replies_;
  absl::Status ended_;  // why the connection is of no more use
  std::optional<Deadline> stop_by_;

  std::thread thread_;  // sends what did not leave at once, and receives
};

}  // namespace shardproof

#endif  // COLLECTIVES_LAUNCH_JOB_CLIENT_H_
