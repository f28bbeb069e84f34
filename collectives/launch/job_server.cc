#include "collectives/launch/job_server.h"

#include <poll.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/launch/connection.h"
#include "collectives/launch/deadline.h"
#include "collectives/launch/job_board.h"
#include "collectives/launch/sockets.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// A rank says who it is as soon as it has connected.
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(3);
// How long the last replies may take to leave.
constexpr absl::Duration kFarewell = absl::Seconds(2);
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Connections beyond one a rank that have not said who they are.
constexpr size_t kStrangers = 128;

Message ReplyTo(uint64_t id, const absl::StatusOr<std::string>& reply) {
  BodyWriter body;
  body.Number(static_cast<uint32_t>(reply.status().code()));
  body.Text(reply.ok() ? absl::string_view(*reply) : reply.status().message());
  return {MessageType::kReply, id, body.Take()};
}

Message RefusalFor(const absl::Status& reason) {
  BodyWriter body;
  body.Number(static_cast<uint32_t>(reason.code())).Text(reason.message());
  return {MessageType::kRefuse, 0, body.Take()};
}

absl::Status Malformed() { return absl::DataLossError("a message whose body does not fit it"); }

}  // namespace

struct JobServer::Peer {
  explicit Peer(FileDescriptor socket) : connection(std::move(socket)) {}

  Connection connection;
  std::vector<Message> inbox;
  std::optional<Rank> rank;  // once it has joined
  Deadline handshake_by = Deadline::In(kHandshakeTimeout);
  int64_t gathers = 0;
  bool refused = false;  // ends when its refusal is sent
  bool ended = false;
};

struct JobServer::Waiter {
  Peer* peer;
  uint64_t id;
  std::string key;
  std::string who_sets_it;
  absl::Duration timeout;
  Deadline deadline;
};

absl::StatusOr<std::unique_ptr<JobServer>> JobServer::Start(FileDescriptor listener,
                                                            WorldSize world_size,
                                                            std::string secret) {
  SHARDPROOF_ASSIGN_OR_RETURN(WakeEvent wake, WakeEvent::Create());
  std::unique_ptr<JobServer> server(
      new JobServer(std::move(listener), std::move(wake), world_size, std::move(secret)));
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

JobServer::JobServer(FileDescriptor listener, WakeEvent wake, WorldSize world_size,
                     std::string secret)
    : world_size_(world_size),
      secret_(std::move(secret)),
      wake_(std::move(wake)),
      listener_(std::move(listener)),
      board_(world_size) {}

JobServer::~JobServer() {
  Stop(absl::UnavailableError("rank 0 ended while ranks were still joining"));
}

void JobServer::Stop(const absl::Status& reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::kJoining) stop_reason_ = reason;
    state_ = State::kStopping;
    stop_by_ = Deadline::In(kFarewell);
  }
  wake_.Wake();
  if (thread_.joinable()) thread_.join();
}

std::vector<Rank> JobServer::NotJoined() const {
  std::vector<Rank> ranks;
  for (int32_t rank = 1; rank < world_size_.value; ++rank) {
    if (joined_.count(rank) == 0) ranks.push_back(Rank{rank});
  }
  return ranks;
}

absl::Status JobServer::WaitForAll(absl::Duration timeout) {
  absl::Status failure;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_until(lock, Deadline::In(timeout).point(),
                            [&] { return state_ == State::kStarted; })) {
      return absl::OkStatus();
    }
    failure = absl::DeadlineExceededError(absl::StrCat(
        RanksText(NotJoined()), " did not join the job within ", absl::FormatDuration(timeout)));
  }
  Stop(failure);
  return failure;
}

void JobServer::Set(absl::string_view key, absl::string_view value) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    board_.Set(key, value);
    changed_.notify_all();
    if (waiters_.empty()) return;
  }
  wake_.Wake();
}

std::optional<std::string> JobServer::Get(absl::string_view key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string* const value = board_.Find(key);
  if (value == nullptr) return std::nullopt;
  return *value;
}

absl::StatusOr<std::string> JobServer::Await(absl::string_view key, absl::string_view who_sets_it,
                                             absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::optional<absl::StatusOr<std::string>> result;
  changed_.wait_until(lock, Deadline::In(timeout).point(), [&] {
    result = board_.TryAwait(Rank{0}, key, who_sets_it);
    return result.has_value();
  });
  if (result.has_value()) return *std::move(result);
  return board_.AwaitTimedOut(key, who_sets_it, timeout);
}

absl::StatusOr<std::vector<std::string>> JobServer::Gather(std::string bytes,
                                                           absl::Duration timeout) {
  const std::lock_guard<std::mutex> one_gather(gather_mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  board_.Give(Rank{0}, board_.sequence(), std::move(bytes));
  std::optional<absl::StatusOr<std::vector<std::string>>> result;
  changed_.wait_until(lock, Deadline::In(timeout).point(), [&] {
    result = board_.TryGather();
    return result.has_value();
  });
  if (result.has_value()) return *std::move(result);
  return board_.GatherTimedOut(timeout);
}

void JobServer::Reuse(std::vector<std::string> gathered) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    spare_ = std::move(gathered);
  }
  wake_.Wake();
}

std::vector<Rank> JobServer::GoneRanks() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return board_.gone();
}

void JobServer::Run() {
  do {
    WaitAndReceive();
  } while (FinishTurn());
}

// Peers and listener belong to the thread; only what others share needs the lock.
void JobServer::WaitAndReceive() {
  const bool accept = listener_.get() >= 0 && !accept_again_.has_value();
  std::vector<pollfd> items = {{wake_.descriptor(), POLLIN, 0},
                               {accept ? listener_.get() : -1, POLLIN, 0}};
  for (const std::unique_ptr<Peer>& peer : peers_) {
    const int events = POLLIN | (peer->connection.has_queued() ? POLLOUT : 0);
    items.push_back({peer->connection.descriptor(), static_cast<short>(events), 0});
  }
  std::optional<Deadline> deadline;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    deadline = NextDeadline();
  }
  poll(items.data(), items.size(), deadline.has_value() ? deadline->PollMilliseconds() : -1);
  if (items[0].revents != 0) wake_.Drain();
  for (size_t i = 2; i < items.size(); ++i) {
    Peer& peer = *peers_[i - 2];
    if ((items[i].revents & ~POLLOUT) == 0) continue;
    if (!peer.connection.Receive(peer.inbox).ok()) peer.ended = true;
  }
  if (accept_again_.has_value() && accept_again_->Expired()) accept_again_.reset();
  if (items[1].revents != 0) AcceptAll();
}

std::optional<Deadline> JobServer::NextDeadline() const {
  std::optional<Deadline> next = stop_by_;
  const auto consider = [&](Deadline deadline) {
    next = next.has_value() ? Deadline::Earlier(*next, deadline) : deadline;
  };
  for (const Waiter& waiter : waiters_) consider(waiter.deadline);
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (!peer->rank.has_value()) consider(peer->handshake_by);
  }
  if (accept_again_.has_value()) consider(*accept_again_);
  return next;
}

void JobServer::AcceptAll() {
  while (true) {
    absl::StatusOr<std::optional<FileDescriptor>> socket = Accept(listener_);
    if (!socket.ok()) accept_again_ = Deadline::In(kAcceptPause);
    if (!socket.ok() || !socket->has_value()) break;
    peers_.push_back(std::make_unique<Peer>(**std::move(socket)));
  }
  // Strangers that hold connections open must not keep ranks out: the oldest go first.
  const size_t limit = kStrangers + world_size_.value;
  size_t strangers = std::count_if(peers_.begin(), peers_.end(),
                                   [](const auto& peer) { return !peer->rank.has_value(); });
  for (size_t i = 0; i < peers_.size() && strangers > limit; ++i) {
    if (peers_[i]->rank.has_value()) continue;
    peers_[i]->ended = true;
    --strangers;
  }
}

// Answers what has arrived. False when the thread is to end.
bool JobServer::FinishTurn() {
  const std::lock_guard<std::mutex> lock(mutex_);
  HandOutSpare();
  for (const std::unique_ptr<Peer>& peer : peers_) HandleInbox(*peer);
  // Before Start: a rank that is gone by now has not joined.
  DropEnded();
  StartIfComplete();
  ServeWaiters();
  if (state_ == State::kStopping) {
    listener_ = FileDescriptor();
    for (const std::unique_ptr<Peer>& peer : peers_) {
      if (!stop_reason_.ok() && !peer->refused) peer->connection.Queue(RefusalFor(stop_reason_));
    }
    stop_reason_ = absl::OkStatus();
  }
  bool queued = false;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    // A connection that does not take it has ended: the next turn finds that when it receives.
    const bool sent = peer->connection.Send().ok();
    queued = queued || (sent && peer->connection.has_queued());
    if (peer->refused && !peer->connection.has_queued()) peer->ended = true;
    if (!peer->rank.has_value() && peer->handshake_by.Expired()) peer->ended = true;
  }
  DropEnded();
  changed_.notify_all();
  return state_ != State::kStopping || (queued && !stop_by_->Expired());
}

void JobServer::HandleInbox(Peer& peer) {
  for (Message& message : std::exchange(peer.inbox, {})) {
    if (peer.refused) break;
    if (!Handle(peer, std::move(message)).ok()) {
      peer.ended = true;
      break;
    }
  }
}

absl::Status JobServer::Handle(Peer& peer, Message message) {
  if (!peer.rank.has_value()) return HandleHello(peer, message);
  BodyReader body(message.body);
  absl::string_view key;
  absl::string_view value;
  switch (message.type) {
    case MessageType::kSet:
      if (!body.Text(key) || !body.Text(value) || !body.AtEnd()) return Malformed();
      board_.Set(key, value);
      return absl::OkStatus();
    case MessageType::kGet: {
      if (!body.Text(key) || !body.AtEnd()) return Malformed();
      const std::string* const found = board_.Find(key);
      peer.connection.Queue(found != nullptr ? ReplyTo(message.id, *found)
                                             : ReplyTo(message.id, absl::NotFoundError("")));
      return absl::OkStatus();
    }
    case MessageType::kAwait:
      return HandleAwait(peer, message);
    case MessageType::kGather:
      HandleGather(peer, std::move(message));
      return absl::OkStatus();
    case MessageType::kGoneRanks: {
      BodyWriter ranks;
      for (const Rank rank : board_.gone()) ranks.Number(rank.value);
      peer.connection.Queue(ReplyTo(message.id, ranks.Take()));
      return absl::OkStatus();
    }
    default:
      return Malformed();
  }
}

absl::Status JobServer::HandleHello(Peer& peer, const Message& message) {
  BodyReader body(message.body);
  uint32_t rank = 0;
  uint32_t world_size = 0;
  absl::string_view secret;
  if (message.type != MessageType::kHello || !body.Number(rank) || !body.Number(world_size) ||
      !body.Text(secret) || !body.AtEnd()) {
    return Malformed();
  }
  const absl::Status admitted =
      Admit(static_cast<int32_t>(rank), static_cast<int32_t>(world_size), secret);
  if (!admitted.ok()) {
    peer.refused = true;
    peer.connection.Queue(RefusalFor(admitted));
    return absl::OkStatus();
  }
  peer.rank = Rank{static_cast<int32_t>(rank)};
  peer.connection.TrustPeer();
  peer.connection.Queue({MessageType::kWelcome, 0, ""});
  joined_.insert(peer.rank->value);
  return absl::OkStatus();
}

// The secret first: what follows is no stranger's business.
absl::Status JobServer::Admit(int32_t rank, int32_t world_size, absl::string_view secret) const {
  if (secret != secret_) {
    return absl::PermissionDeniedError("another job answers there: its secret is not ours");
  }
  if (world_size != world_size_.value) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " says that there are ",
                                                      world_size, " ranks; rank 0 was told ",
                                                      world_size_.value));
  }
  if (rank < 0 || rank >= world_size_.value) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " of ", world_size_.value,
                                                   "; accepted: 1 to ", world_size_.value - 1));
  }
  if (rank == 0 || joined_.count(rank) != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("another process has joined as rank ", rank, "; each rank joins once"));
  }
  return absl::OkStatus();
}

absl::Status JobServer::HandleAwait(Peer& peer, const Message& message) {
  BodyReader body(message.body);
  absl::string_view key;
  absl::string_view who;
  uint64_t nanoseconds = 0;
  if (!body.Text(key) || !body.Text(who) || !body.Number64(nanoseconds) || !body.AtEnd()) {
    return Malformed();
  }
  const absl::Duration timeout =
      absl::Nanoseconds(std::min<uint64_t>(nanoseconds, std::numeric_limits<int64_t>::max()));
  waiters_.push_back(
      {&peer, message.id, std::string(key), std::string(who), timeout, Deadline::In(timeout)});
  return absl::OkStatus();
}

void JobServer::HandleGather(Peer& peer, Message message) {
  const int64_t sequence = peer.gathers++;
  const bool taken = board_.Give(*peer.rank, sequence, std::move(message.body));
  peer.connection.Queue(
      taken ? ReplyTo(message.id, std::string())
            : ReplyTo(message.id, absl::DeadlineExceededError(absl::StrCat(
                                      "rank ", peer.rank->value, " came too late to gather ",
                                      sequence, ", which has ended with an error on rank 0"))));
}

// A connection uses it for the next message that begins.
void JobServer::HandOutSpare() {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    const size_t rank = peer->rank.has_value() ? peer->rank->value : spare_.size();
    if (rank < spare_.size()) peer->connection.ReuseForBody(std::move(spare_[rank]));
  }
  spare_.clear();
}

void JobServer::StartIfComplete() {
  if (state_ != State::kJoining || static_cast<int32_t>(joined_.size()) != world_size_.value - 1) {
    return;
  }
  state_ = State::kStarted;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->rank.has_value()) peer->connection.Queue({MessageType::kStart, 0, ""});
  }
}

void JobServer::ServeWaiters() {
  std::vector<Waiter> waiting;
  for (Waiter& waiter : std::exchange(waiters_, {})) {
    std::optional<absl::StatusOr<std::string>> result =
        board_.TryAwait(*waiter.peer->rank, waiter.key, waiter.who_sets_it);
    if (!result.has_value() && waiter.deadline.Expired()) {
      result = board_.AwaitTimedOut(waiter.key, waiter.who_sets_it, waiter.timeout);
    }
    if (result.has_value()) {
      waiter.peer->connection.Queue(ReplyTo(waiter.id, *result));
    } else {
      waiting.push_back(std::move(waiter));
    }
  }
  waiters_ = std::move(waiting);
}

void JobServer::DropEnded() {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (!peer->ended) continue;
    waiters_.erase(std::remove_if(waiters_.begin(), waiters_.end(),
                                  [&](const Waiter& waiter) { return waiter.peer == peer.get(); }),
                   waiters_.end());
    if (!peer->rank.has_value()) continue;
    // Before the start its place is free again: it may have given up on a slow handshake.
    if (state_ == State::kJoining) {
      joined_.erase(peer->rank->value);
    } else {
      board_.MarkGone(*peer->rank);
    }
  }
  peers_.erase(std::remove_if(peers_.begin(), peers_.end(),
                              [](const std::unique_ptr<Peer>& peer) { return peer->ended; }),
               peers_.end());
}

}  // namespace shardproof
