#include "collectives/launch/job_client.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
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
#include "absl/types/span.h"
#include "collectives/launch/connection.h"
#include "collectives/launch/deadline.h"
#include "collectives/launch/sockets.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr absl::Duration kPauseBetweenRounds = absl::Milliseconds(50);
// How long one of several addresses may take to answer in the first round; later rounds give more.
constexpr absl::Duration kFirstAnswer = absl::Seconds(1);
// Rank 0 answers at once unless it is stopped or its machine is unreachable.
constexpr absl::Duration kAnswer = absl::Seconds(10);
// Rank 0 measures the timeout of an Await; its word is better than ours.
constexpr absl::Duration kGrace = absl::Milliseconds(500);
constexpr absl::Duration kFarewell = absl::Seconds(2);
// What may wait for a rank 0 that does not read.
constexpr size_t kMaxQueuedBytes = 64 << 20;

// A code and words, as kReply and kRefuse have them.
absl::StatusOr<std::string> ParseOutcome(absl::string_view body_bytes) {
  BodyReader body(body_bytes);
  uint32_t code = 0;
  absl::string_view text;
  if (!body.Number(code) || !body.Text(text) || !body.AtEnd()) {
    return absl::DataLossError("rank 0 sent a reply that is cut short");
  }
  if (code == 0) return std::string(text);
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

// The first message of rank 0. Receive may have brought more than one.
absl::StatusOr<Message> ReceiveOne(Connection& connection, std::vector<Message>& inbox,
                                   Deadline deadline) {
  absl::Status received;
  while (inbox.empty()) {
    if (!received.ok()) return received;
    if (deadline.Expired()) return absl::DeadlineExceededError("no answer");
    pollfd item = {connection.descriptor(), POLLIN, 0};
    poll(&item, 1, deadline.PollMilliseconds());
    received = connection.Receive(inbox);
  }
  Message message = std::move(inbox.front());
  inbox.erase(inbox.begin());
  return message;
}

// One attempt to be taken at one address. A refusal's code is that of its reason; all else is
// Unavailable, DeadlineExceeded or DataLoss: nobody, silence, or somebody who is no job.
absl::StatusOr<std::unique_ptr<Connection>> ShakeHands(const SocketAddress& address,
                                                       const JobSearch& search,
                                                       std::vector<Message>& inbox,
                                                       Deadline deadline) {
  SHARDPROOF_ASSIGN_OR_RETURN(FileDescriptor socket, Connect(address, deadline));
  auto connection = std::make_unique<Connection>(std::move(socket));
  BodyWriter hello;
  hello.Number(search.rank.value).Number(search.world_size.value).Text(search.secret);
  connection->Queue({MessageType::kHello, 0, hello.Take()});
  SHARDPROOF_RETURN_IF_ERROR(connection->Send());  // A new socket's buffer takes it whole.
  inbox.clear();
  const absl::StatusOr<Message> answer = ReceiveOne(*connection, inbox, deadline);
  if (!answer.ok()) {
    return absl::Status(answer.status().code(), absl::StrCat("what listens at ", address.Text(),
                                                             " does not answer as rank 0 does: ",
                                                             answer.status().message()));
  }
  if (answer->type == MessageType::kWelcome) {
    connection->TrustPeer();
    return connection;
  }
  const absl::StatusOr<std::string> refusal = ParseOutcome(answer->body);
  if (answer->type != MessageType::kRefuse || refusal.ok()) {
    return absl::DataLossError(
        absl::StrCat("what listens at ", address.Text(), " does not answer as rank 0 does"));
  }
  return absl::Status(refusal.status().code(),
                      absl::StrCat(address.Text(), ": ", refusal.status().message()));
}

bool IsRefusal(const absl::Status& status) {
  return !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) &&
         !absl::IsDataLoss(status);
}

absl::StatusOr<std::vector<SocketAddress>> ResolveAll(const JobSearch& search) {
  std::vector<SocketAddress> all;
  for (const int32_t port : search.ports) {
    SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses,
                                Resolve(search.host, port));
    all.insert(all.end(), addresses.begin(), addresses.end());
  }
  return all;
}

std::string Place(const JobSearch& search) {
  std::string text = absl::StrCat(search.host, ":", search.ports.front());
  if (search.ports.size() > 1) absl::StrAppend(&text, " to ", search.ports.back());
  return text;
}

// Round after round over all addresses, until rank 0 takes this rank or refuses it.
absl::StatusOr<std::unique_ptr<Connection>> Find(const JobSearch& search,
                                                 std::vector<Message>& inbox, Deadline deadline) {
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, ResolveAll(search));
  absl::Duration answer = addresses.size() > 1 ? kFirstAnswer : search.timeout;
  absl::Status last = absl::UnavailableError("nobody was asked");
  for (;; answer *= 2) {
    for (const SocketAddress& address : addresses) {
      absl::StatusOr<std::unique_ptr<Connection>> connection =
          ShakeHands(address, search, inbox, Deadline::Earlier(deadline, Deadline::In(answer)));
      if (connection.ok()) return connection;
      // At one of several ports another job may be at home.
      const bool other_job =
          search.ports.size() > 1 && absl::IsPermissionDenied(connection.status());
      if (IsRefusal(connection.status()) && !other_job) return connection;
      last = connection.status();
      if (deadline.Expired()) {
        return absl::DeadlineExceededError(absl::StrCat(
            "rank ", search.rank.value, " found no rank 0 of its job at ", Place(search),
            " within ", absl::FormatDuration(search.timeout), "; ", last.message()));
      }
    }
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(kPauseBetweenRounds));
  }
}

absl::Status WaitForStart(Connection& connection, std::vector<Message>& inbox,
                          const JobSearch& search, Deadline deadline) {
  const absl::StatusOr<Message> message = ReceiveOne(connection, inbox, deadline);
  if (absl::IsDeadlineExceeded(message.status())) {
    return absl::DeadlineExceededError(absl::StrCat(
        "rank ", search.rank.value, " joined rank 0 at ", Place(search), ", but not all ",
        search.world_size.value, " ranks did within ", absl::FormatDuration(search.timeout)));
  }
  if (!message.ok()) {
    return absl::UnavailableError("rank 0 is gone, it ended while ranks were still joining");
  }
  if (message->type == MessageType::kStart) return absl::OkStatus();
  const absl::StatusOr<std::string> refusal = ParseOutcome(message->body);
  if (message->type == MessageType::kRefuse && !refusal.ok()) return refusal.status();
  return absl::DataLossError("rank 0 sent something else than the start of the job");
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobClient>> JobClient::Join(const JobSearch& search) {
  const Deadline deadline = Deadline::In(search.timeout);
  std::vector<Message> inbox;
  SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection,
                              Find(search, inbox, deadline));
  SHARDPROOF_RETURN_IF_ERROR(WaitForStart(*connection, inbox, search, deadline));
  SHARDPROOF_ASSIGN_OR_RETURN(WakeEvent wake, WakeEvent::Create());
  std::unique_ptr<JobClient> client(new JobClient(std::move(connection), std::move(wake)));
  client->thread_ = std::thread([raw = client.get()] { raw->Run(); });
  return client;
}

JobClient::JobClient(std::unique_ptr<Connection> connection, WakeEvent wake)
    : connection_(std::move(connection)), wake_(std::move(wake)) {}

JobClient::~JobClient() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_by_ = Deadline::In(kFarewell);
  }
  wake_.Wake();
  if (thread_.joinable()) thread_.join();
}

// With mutex_ held. What does not leave at once, the thread sends; so it does not wait.
void JobClient::Queue(Message message, absl::Span<const absl::string_view> pieces) {
  connection_->Queue(std::move(message), pieces);
  // A connection that has ended is found by the thread, after what arrived on it.
  if (!connection_->Send().ok() || connection_->has_queued()) wake_.Wake();
}

absl::Status JobClient::Set(absl::string_view key, absl::string_view value) {
  BodyWriter body;
  body.Text(key).Text(value);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!ended_.ok()) return ended_;
  if (connection_->queued_control_bytes() > kMaxQueuedBytes) {
    return absl::UnavailableError(
        absl::StrCat("rank 0 does not read what it is sent: ", connection_->queued_control_bytes(),
                     " bytes wait, so \"", key, "\" cannot be set"));
  }
  Queue({MessageType::kSet, 0, body.Take()});
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> JobClient::Get(absl::string_view key) {
  BodyWriter body;
  body.Text(key);
  absl::StatusOr<std::string> reply =
      Call(MessageType::kGet, body.Take(), kAnswer, absl::StrCat("the value of \"", key, "\""));
  if (reply.ok()) return *std::move(reply);
  if (absl::IsNotFound(reply.status())) return std::nullopt;
  return reply.status();
}

absl::StatusOr<std::string> JobClient::Await(absl::string_view key, absl::string_view who_sets_it,
                                             absl::Duration timeout) {
  const absl::Duration bounded = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365));
  BodyWriter body;
  body.Text(key).Text(who_sets_it).Number64(absl::ToInt64Nanoseconds(bounded));
  return Call(MessageType::kAwait, body.Take(), bounded + kGrace,
              absl::StrCat("\"", key, "\", which ", who_sets_it, " sets"));
}

absl::Status JobClient::Gather(absl::Span<const absl::string_view> pieces, absl::Duration timeout) {
  size_t bytes = 0;
  for (const absl::string_view piece : pieces) bytes += piece.size();
  const std::string what = absl::StrCat(bytes, " bytes given to a gather");
  return Call(MessageType::kGather, "", timeout, what, pieces).status();
}

absl::StatusOr<std::vector<Rank>> JobClient::GoneRanks() {
  SHARDPROOF_ASSIGN_OR_RETURN(const std::string reply,
                              Call(MessageType::kGoneRanks, "", kAnswer, "which ranks are gone"));
  std::vector<Rank> ranks;
  BodyReader body(reply);
  uint32_t rank = 0;
  while (body.Number(rank)) ranks.push_back(Rank{static_cast<int32_t>(rank)});
  return ranks;
}

absl::StatusOr<std::string> JobClient::Call(MessageType type, std::string body,
                                            absl::Duration timeout, absl::string_view what,
                                            absl::Span<const absl::string_view> pieces) {
  const Deadline deadline = Deadline::In(timeout);
  std::unique_lock<std::mutex> lock(mutex_);
  if (!ended_.ok()) return ended_;
  const uint64_t id = next_id_++;
  const auto entry = replies_.try_emplace(id).first;
  Queue({type, id, std::move(body)}, pieces);
  changed_.wait_until(lock, deadline.point(),
                      [&] { return entry->second.has_value() || !ended_.ok(); });
  // Pieces are the caller's, and the rest of a message that has begun to leave must follow it.
  if (!pieces.empty()) connection_->OwnQueued();
  std::optional<absl::StatusOr<std::string>> reply = std::move(entry->second);
  replies_.erase(entry);
  if (reply.has_value()) return *std::move(reply);
  if (!ended_.ok()) return ended_;
  return absl::DeadlineExceededError(absl::StrCat("rank 0 does not answer: ", what, ", ",
                                                  absl::FormatDuration(timeout), " waited"));
}

void JobClient::Run() {
  while (true) {
    bool queued = false;
    std::optional<Deadline> stop_by;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      queued = connection_->has_queued();
      stop_by = stop_by_;
    }
    if (stop_by.has_value() && (!queued || stop_by->Expired())) return;
    const int events = POLLIN | (queued ? POLLOUT : 0);
    pollfd items[2] = {{wake_.descriptor(), POLLIN, 0},
                       {connection_->descriptor(), static_cast<short>(events), 0}};
    poll(items, 2, stop_by.has_value() ? stop_by->PollMilliseconds() : -1);
    if (items[0].revents != 0) wake_.Drain();
    if (items[1].revents == 0) continue;
    std::vector<Message> messages;
    const absl::Status received = connection_->Receive(messages);
    if (!FinishTurn(received, std::move(messages))) return;
  }
}

bool JobClient::FinishTurn(const absl::Status& received, std::vector<Message> messages) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Message& message : messages) {
    // A reply that nobody waits for any longer came too late.
    const auto entry = replies_.find(message.id);
    if (message.type == MessageType::kReply && entry != replies_.end()) {
      entry->second = ParseOutcome(message.body);
    }
  }
  if (!received.ok()) {
    ended_ = absl::UnavailableError(absl::StrCat("rank 0 is gone: ", received.message()));
  } else {
    (void)connection_->Send();  // If it has ended, the next Receive says so.
  }
  changed_.notify_all();
  return received.ok();
}

}  // namespace shardproof
