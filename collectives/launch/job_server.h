// JobServer: rank 0's side of a job: a thread that serves the other ranks' connections, and the
// calls of rank 0 itself, which need none. See connection.h for what is said on them.
//
// A connection that does not begin with the handshake of this job is dropped; one that is silent
// is, after some seconds.
#ifndef COLLECTIVES_LAUNCH_JOB_SERVER_H_
#define COLLECTIVES_LAUNCH_JOB_SERVER_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/launch/connection.h"
#include "collectives/launch/deadline.h"
#include "collectives/launch/job_board.h"
#include "collectives/launch/sockets.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

class JobServer {
 public:
  // Starts to serve on `listener`.
  static absl::StatusOr<std::unique_ptr<JobServer>> Start(FileDescriptor listener,
                                                          WorldSize world_size, std::string secret);
  // Sends what waits to be sent, for a bounded time, and closes all connections.
  ~JobServer();

  // OK when all ranks have joined. DeadlineExceeded names those that have not; the others are told
  // and the server takes no more.
  absl::Status WaitForAll(absl::Duration timeout);

  // Rank 0's calls, as those of Job.
  void Set(absl::string_view key, absl::string_view value);
  std::optional<std::string> Get(absl::string_view key);
  absl::StatusOr<std::string> Await(absl::string_view key, absl::string_view who_sets_it,
                                    absl::Duration timeout);
  absl::StatusOr<std::vector<std::string>> Gather(std::string bytes, absl::Duration timeout);
  void Reuse(std::vector<std::string> gathered);
  std::vector<Rank> GoneRanks();

 private:
  struct Peer;
  struct Waiter;
  enum class State { kJoining, kStarted, kStopping };

  JobServer(FileDescriptor listener, WakeEvent wake, WorldSize world_size, std::string secret);

  // Ends the thread. An error is told to the ranks that have joined.
  void Stop(const absl::Status& reason);
  std::vector<Rank> NotJoined() const;

  // The thread. It holds mutex_ except while it waits and receives.
  void Run();
  void WaitAndReceive();
  std::optional<Deadline> NextDeadline() const;
  void AcceptAll();
  bool FinishTurn();
  void HandleInbox(Peer& peer);
  absl::Status Handle(Peer& peer, Message message);
  absl::Status HandleHello(Peer& peer, const Message& message);
  absl::Status Admit(int32_t rank, int32_t world_size, absl::string_view secret) const;
  absl::Status HandleAwait(Peer& peer, const Message& message);
  void HandleGather(Peer& peer, Message message);
  void HandOutSpare();
  void StartIfComplete();
  void ServeWaiters();
  void DropEnded();

  const WorldSize world_size_;
  const std::string secret_;
  const WakeEvent wake_;

  // The thread's own.
  FileDescriptor listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::optional<Deadline> accept_again_;  // after the machine ran out of descriptors

  std::mutex gather_mutex_;  // one Gather of rank 0 at a time

  std::mutex mutex_;
  std::condition_variable changed_;  // board_, joined_ or state_
  State state_ = State::kJoining;
  absl::Status stop_reason_;  // until it has been told
  std::optional<Deadline> stop_by_;
  std::set<int32_t> joined_;
  JobBoard board_;
  std::vector<Waiter> waiters_;     // Set of rank 0 looks whether there are any
  std::vector<std::string> spare_;  // by rank, or empty: until the thread takes it

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace shardproof

#endif  // COLLECTIVES_LAUNCH_JOB_SERVER_H_
