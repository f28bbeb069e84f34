#include "collectives/mpi/mpi_launch.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/launch/job.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/world.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// What rank 0 broadcasts: lines of text, then zeros.
//   serves, host, port, secret
//   fails, reason
// A name of a machine has at most 253 characters.
constexpr size_t kAnnouncementBytes = 1024;
using Announcement = std::array<char, kAnnouncementBytes>;

// Collectives carry float32 and do not look at them.
constexpr int64_t kAnnouncementElements = kAnnouncementBytes / 4;

Announcement Announce(const std::string& text) {
  Announcement announcement{};
  std::memcpy(announcement.data(), text.data(), std::min(text.size(), kAnnouncementBytes - 1));
  return announcement;
}

absl::Status Broadcast(World& world, absl::Duration timeout, Announcement& announcement) {
  const Rank self = world.local_ranks()[0];
  SHARDPROOF_ASSIGN_OR_RETURN(Communicator* const all,
                              world.communicator(self, Group{0, 1, world.size().value}));
  CollectiveCall call;
  call.kind = CollectiveKind::kBroadcast;
  call.elements = kAnnouncementElements;
  call.send = call.recv = announcement.data();
  call.root = Rank{0};
  SHARDPROOF_ASSIGN_OR_RETURN(const CollectiveHandle handle, all->Start(call));
  return all->Wait(handle, timeout);
}

// Unpredictable, and no shorter than a key.
std::string RandomSecret() {
  std::random_device random;
  std::string secret;
  for (int i = 0; i < 8; ++i) absl::StrAppend(&secret, absl::Hex(random(), absl::kZeroPad8));
  return secret;
}

absl::Status Validate(const World& world, const LaunchEnvironment& environment) {
  if (environment.launcher != Launcher::kMpirun) {
    return absl::InvalidArgumentError(absl::StrCat("a job of launcher ", Name(environment.launcher),
                                                   "; accepted: ", Name(Launcher::kMpirun)));
  }
  const std::vector<Rank> local = world.local_ranks();
  if (local.size() != 1 || local[0] != environment.rank || world.size() != environment.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment is of rank ", environment.rank.value, " of ",
                     environment.world_size.value, ", the world has ", local.size(),
                     " ranks in this process, first ", local.empty() ? -1 : local[0].value, ", of ",
                     world.size().value, "; accepted: one, the same"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Job>> ServeAsRankZero(World& world, JobOptions options) {
  options.secret = RandomSecret();
  bool announced = false;
  const auto bound = [&](const JobAddress& address) {
    announced = true;
    Announcement announcement =
        Announce(absl::StrCat("serves\n", address.host, "\n", address.port, "\n", options.secret));
    return Broadcast(world, options.timeout, announcement);
  };
  absl::StatusOr<std::unique_ptr<Job>> job = JoinJob(options, bound);
  if (!job.ok() && !announced) {
    Announcement announcement = Announce(absl::StrCat("fails\n", job.status().message()));
    // Rank 0's own reason is the one to return.
    Broadcast(world, options.timeout, announcement).IgnoreError();
  }
  return job;
}

absl::StatusOr<std::unique_ptr<Job>> JoinAsOther(World& world, JobOptions options) {
  Announcement announcement{};
  SHARDPROOF_RETURN_IF_ERROR(Broadcast(world, options.timeout, announcement));
  announcement.back() = '\0';
  const std::string text(announcement.data());
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines[0] == "fails") {
    return absl::UnavailableError(
        absl::StrCat("rank 0 cannot serve the job: ", absl::string_view(text).substr(6)));
  }
  if (lines.size() != 4 || lines[0] != "serves" ||
      !absl::SimpleAtoi(lines[2], &options.address.port)) {
    return absl::InternalError(absl::StrCat("rank 0 announced \"", text, "\""));
  }
  options.address.host = lines[1];
  options.secret = lines[3];
  return JoinJob(options, nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Job>> JoinMpirunJob(World& world,
                                                   const LaunchEnvironment& environment,
                                                   absl::Duration timeout) {
  SHARDPROOF_RETURN_IF_ERROR(Validate(world, environment));
  JobOptions options;
  options.rank = environment.rank;
  options.world_size = environment.world_size;
  options.timeout = timeout;
  if (environment.world_size.value == 1) return JoinJob(options, nullptr);
  if (environment.rank.value != 0) return JoinAsOther(world, options);
  // Elsewhere rank 0 is known by the name of its machine.
  const bool one_machine = environment.local_world_size == environment.world_size.value;
  if (one_machine) options.address.host = "127.0.0.1";
  return ServeAsRankZero(world, options);
}

}  // namespace shardproof
