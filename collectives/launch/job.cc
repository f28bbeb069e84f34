#include "collectives/launch/job.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/launch/connection.h"
#include "collectives/launch/deadline.h"
#include "collectives/launch/job_board.h"
#include "collectives/launch/job_client.h"
#include "collectives/launch/job_server.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/launch/sockets.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr int32_t kTorchrunPorts = 16;
constexpr int32_t kMaxPort = 65535;

using Bound = std::function<absl::Status(const JobAddress&)>;

absl::Status TooLong(absl::string_view what, size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", bytes, " bytes; accepted: up to ", limit));
}

absl::Status ValidateKey(absl::string_view key) {
  if (key.size() <= kMaxKeyBytes) return absl::OkStatus();
  return TooLong("a key of a job", key.size(), kMaxKeyBytes);
}

absl::Status ValidateAwait(absl::string_view key, absl::string_view who_sets_it) {
  SHARDPROOF_RETURN_IF_ERROR(ValidateKey(key));
  if (who_sets_it.size() <= kMaxKeyBytes) return absl::OkStatus();
  return TooLong("the name of who sets a key", who_sets_it.size(), kMaxKeyBytes);
}

absl::Status ValidateSet(absl::string_view key, absl::string_view value) {
  SHARDPROOF_RETURN_IF_ERROR(ValidateKey(key));
  if (value.size() <= kMaxValueBytes) return absl::OkStatus();
  return TooLong(absl::StrCat("the value of \"", key, "\""), value.size(), kMaxValueBytes);
}

// The only rank of its job: its own second thread may still set what it awaits.
class JobOfOne : public Job {
 public:
  Rank rank() const override { return Rank{0}; }
  WorldSize world_size() const override { return WorldSize{1}; }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    SHARDPROOF_RETURN_IF_ERROR(ValidateSet(key, value));
    const std::lock_guard<std::mutex> lock(mutex_);
    board_.Set(key, value);
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override {
    SHARDPROOF_RETURN_IF_ERROR(ValidateKey(key));
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string* const value = board_.Find(key);
    if (value == nullptr) return std::nullopt;
    return *value;
  }

  absl::StatusOr<std::string> Await(absl::string_view key, absl::string_view who_sets_it,
                                    absl::Duration timeout) override {
    SHARDPROOF_RETURN_IF_ERROR(ValidateAwait(key, who_sets_it));
    std::unique_lock<std::mutex> lock(mutex_);
    const bool is_set = changed_.wait_until(lock, Deadline::In(timeout).point(),
                                            [&] { return board_.Find(key) != nullptr; });
    if (is_set) return *board_.Find(key);
    return board_.AwaitTimedOut(key, who_sets_it, timeout);
  }

  absl::StatusOr<std::vector<std::string>> Gather(std::string bytes, absl::Duration) override {
    std::vector<std::string> all;
    all.push_back(std::move(bytes));
    return all;
  }

  absl::StatusOr<std::vector<Rank>> GoneRanks() override { return std::vector<Rank>(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  JobBoard board_{WorldSize{1}};
};

class JobOfRankZero : public Job {
 public:
  JobOfRankZero(WorldSize world_size, std::unique_ptr<JobServer> server)
      : world_size_(world_size), server_(std::move(server)) {}

  Rank rank() const override { return Rank{0}; }
  WorldSize world_size() const override { return world_size_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    SHARDPROOF_RETURN_IF_ERROR(ValidateSet(key, value));
    server_->Set(key, value);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override {
    SHARDPROOF_RETURN_IF_ERROR(ValidateKey(key));
    return server_->Get(key);
  }

  absl::StatusOr<std::string> Await(absl::string_view key, absl::string_view who_sets_it,
                                    absl::Duration timeout) override {
    SHARDPROOF_RETURN_IF_ERROR(ValidateAwait(key, who_sets_it));
    return server_->Await(key, who_sets_it, timeout);
  }

  absl::StatusOr<std::vector<std::string>> Gather(std::string bytes,
                                                  absl::Duration timeout) override {
    return server_->Gather(std::move(bytes), timeout);
  }

  void Reuse(std::vector<std::string> gathered) override { server_->Reuse(std::move(gathered)); }

  absl::StatusOr<std::vector<Rank>> GoneRanks() override { return server_->GoneRanks(); }

 private:
  const WorldSize world_size_;
  const std::unique_ptr<JobServer> server_;
};

class JobOfAnotherRank : public Job {
 public:
  JobOfAnotherRank(Rank rank, WorldSize world_size, std::unique_ptr<JobClient> client)
      : rank_(rank), world_size_(world_size), client_(std::move(client)) {}

  Rank rank() const override { return rank_; }
  WorldSize world_size() const override { return world_size_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    SHARDPROOF_RETURN_IF_ERROR(ValidateSet(key, value));
    return client_->Set(key, value);
  }

  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override {
    SHARDPROOF_RETURN_IF_ERROR(ValidateKey(key));
    return client_->Get(key);
  }

  absl::StatusOr<std::string> Await(absl::string_view key, absl::string_view who_sets_it,
                                    absl::Duration timeout) override {
    SHARDPROOF_RETURN_IF_ERROR(ValidateAwait(key, who_sets_it));
    return client_->Await(key, who_sets_it, timeout);
  }

  absl::StatusOr<std::vector<std::string>> Gather(std::string bytes,
                                                  absl::Duration timeout) override {
    return GatherPieces({bytes}, timeout);
  }

  absl::StatusOr<std::vector<std::string>> GatherPieces(absl::Span<const absl::string_view> pieces,
                                                        absl::Duration timeout) override {
    SHARDPROOF_RETURN_IF_ERROR(client_->Gather(pieces, timeout));
    return std::vector<std::string>();
  }

  absl::StatusOr<std::vector<Rank>> GoneRanks() override { return client_->GoneRanks(); }

 private:
  const Rank rank_;
  const WorldSize world_size_;
  const std::unique_ptr<JobClient> client_;
};

absl::Status Validate(const JobOptions& options) {
  if (options.world_size.value < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", options.world_size.value, " ranks; accepted: 1 or more"));
  }
  if (options.rank.value < 0 || options.rank.value >= options.world_size.value) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank.value, " of ",
                                                   options.world_size.value, "; accepted: 0 to ",
                                                   options.world_size.value - 1));
  }
  const int32_t lowest = options.rank.value == 0 ? 0 : 1;
  if (options.address.port < lowest || options.address.port > kMaxPort) {
    return absl::InvalidArgumentError(absl::StrCat("port ", options.address.port, " for rank ",
                                                   options.rank.value, "; accepted: ", lowest,
                                                   " to ", kMaxPort));
  }
  if (options.rank.value != 0 && options.address.host.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options.rank.value, " has no host to connect to; accepted: that of rank 0"));
  }
  if (options.secret.size() > kMaxSecretBytes) {
    return TooLong("the secret of a job", options.secret.size(), kMaxSecretBytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Job>> Serve(const JobOptions& options, FileDescriptor listener,
                                           const Bound& bound) {
  JobAddress address = options.address;
  SHARDPROOF_ASSIGN_OR_RETURN(address.port, PortOf(listener));
  if (address.host.empty()) address.host = NameOfThisMachine();
  SHARDPROOF_ASSIGN_OR_RETURN(
      std::unique_ptr<JobServer> server,
      JobServer::Start(std::move(listener), options.world_size, options.secret));
  if (bound) SHARDPROOF_RETURN_IF_ERROR(bound(address));
  SHARDPROOF_RETURN_IF_ERROR(server->WaitForAll(options.timeout));
  return std::make_unique<JobOfRankZero>(options.world_size, std::move(server));
}

absl::StatusOr<std::unique_ptr<Job>> JoinAsOther(const JobOptions& options,
                                                 std::vector<int32_t> ports) {
  SHARDPROOF_ASSIGN_OR_RETURN(
      std::unique_ptr<JobClient> client,
      JobClient::Join({options.address.host, std::move(ports), options.rank, options.world_size,
                       options.secret, options.timeout}));
  return std::make_unique<JobOfAnotherRank>(options.rank, options.world_size, std::move(client));
}

std::vector<int32_t> PortsAfter(int32_t master_port) {
  std::vector<int32_t> ports;
  const int32_t last = std::min(master_port + kTorchrunPorts, kMaxPort);
  for (int32_t port = master_port + 1; port <= last; ++port) ports.push_back(port);
  return ports;
}

// MASTER_ADDR itself if all ranks are on this machine, so that others do not see the port. Else
// all interfaces: a machine may know its own name by a loopback address that others cannot reach.
absl::StatusOr<FileDescriptor> ListenForTorchrun(const LaunchEnvironment& environment,
                                                 int32_t port) {
  if (environment.local_world_size == environment.world_size.value) {
    absl::StatusOr<FileDescriptor> listener = Listen(environment.master_address, port);
    if (listener.ok() || absl::IsAlreadyExists(listener.status())) return listener;
  }
  return Listen("", port);
}

absl::StatusOr<FileDescriptor> FirstFreePort(const LaunchEnvironment& environment,
                                             const std::vector<int32_t>& ports) {
  for (const int32_t port : ports) {
    absl::StatusOr<FileDescriptor> listener = ListenForTorchrun(environment, port);
    if (listener.ok() || !absl::IsAlreadyExists(listener.status())) return listener;
  }
  return absl::UnavailableError(
      absl::StrCat("rank 0 found no free port: other programs hold all of ", ports.front(), " to ",
                   ports.back(), ", the ports after MASTER_PORT ", environment.master_port));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Job::GatherPieces(
    absl::Span<const absl::string_view> pieces, absl::Duration timeout) {
  return Gather(absl::StrJoin(pieces, ""), timeout);
}

absl::StatusOr<std::unique_ptr<Job>> JoinJob(const JobOptions& options, const Bound& bound) {
  SHARDPROOF_RETURN_IF_ERROR(Validate(options));
  if (options.world_size.value == 1) return std::make_unique<JobOfOne>();
  if (options.rank.value != 0) return JoinAsOther(options, {options.address.port});
  SHARDPROOF_ASSIGN_OR_RETURN(FileDescriptor listener,
                              Listen(options.address.host, options.address.port));
  return Serve(options, std::move(listener), bound);
}

absl::StatusOr<std::unique_ptr<Job>> JoinTorchrunJob(const LaunchEnvironment& environment,
                                                     absl::Duration timeout) {
  const std::vector<int32_t> ports = PortsAfter(environment.master_port);
  if (environment.launcher != Launcher::kTorchrun || environment.master_port < 1 || ports.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a job of launcher ", Name(environment.launcher),
                                                   " with MASTER_PORT ", environment.master_port,
                                                   "; accepted: torchrun and 1 to ", kMaxPort - 1));
  }
  JobOptions options;
  options.rank = environment.rank;
  options.world_size = environment.world_size;
  options.address = {environment.master_address, ports.front()};
  // Run ids are often left at their default; no two agents of a machine hold the same port.
  options.secret = absl::StrCat("torchrun ", environment.master_port, " ",
                                environment.master_address, " ", environment.run_id);
  options.timeout = timeout;
  SHARDPROOF_RETURN_IF_ERROR(Validate(options));
  if (options.world_size.value == 1) return std::make_unique<JobOfOne>();
  if (options.rank.value != 0) return JoinAsOther(options, ports);
  SHARDPROOF_ASSIGN_OR_RETURN(FileDescriptor listener, FirstFreePort(environment, ports));
  return Serve(options, std::move(listener), nullptr);
}

}  // namespace shardproof
