#include "collectives/launch/launch_environment.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// The four numbers that both launchers give, and each one's names for them.
struct Names {
  absl::string_view launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr Names kMpirunNames = {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kTorchrunNames = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE"};
constexpr char kMasterAddress[] = "MASTER_ADDR";
constexpr char kMasterPort[] = "MASTER_PORT";
constexpr char kRunId[] = "TORCHELASTIC_RUN_ID";

bool IsMpirun(const GetEnvironment& get) {
  return get(kMpirunNames.rank) || get(kMpirunNames.world_size) || get(kMpirunNames.local_rank) ||
         get(kMpirunNames.local_world_size);
}

// The rule of the header: what shells export for other programs is no launch.
bool IsTorchrun(const GetEnvironment& get) {
  if (get(kTorchrunNames.local_rank) || get(kTorchrunNames.local_world_size) || get(kRunId)) {
    return true;
  }
  const bool rank = get(kTorchrunNames.rank) != nullptr;
  const bool world_size = get(kTorchrunNames.world_size) != nullptr;
  const bool master = get(kMasterAddress) || get(kMasterPort);
  return (rank && world_size) || ((rank || world_size) && master);
}

absl::StatusOr<std::string> ReadText(const GetEnvironment& get, absl::string_view launcher,
                                     const char* name) {
  const char* const value = get(name);
  if (value == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the environment variable ", name,
                                                   " is missing while others of ", launcher,
                                                   " are set: set all of them or none"));
  }
  return std::string(value);
}

// `accepted` says the range in the words of the variables that bound it.
absl::StatusOr<int32_t> ReadNumber(const GetEnvironment& get, absl::string_view launcher,
                                   const char* name, int32_t lowest, int32_t highest,
                                   absl::string_view accepted) {
  SHARDPROOF_ASSIGN_OR_RETURN(const std::string text, ReadText(get, launcher, name));
  int32_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < lowest || value > highest) {
    return absl::InvalidArgumentError(absl::StrCat("the environment variable ", name, " is \"",
                                                   text, "\"; accepted: ", accepted));
  }
  return value;
}

std::string UpTo(int32_t lowest, int32_t highest, const char* bound, int32_t bound_value) {
  return absl::StrCat("a whole number from ", lowest, " to ", highest, ", as ", bound, " is ",
                      bound_value);
}

absl::Status ReadRanks(const GetEnvironment& get, const Names& names, LaunchEnvironment& result) {
  SHARDPROOF_ASSIGN_OR_RETURN(const int32_t size,
                              ReadNumber(get, names.launcher, names.world_size, 1, INT32_MAX,
                                         absl::StrCat("a whole number from 1 to ", INT32_MAX)));
  SHARDPROOF_ASSIGN_OR_RETURN(const int32_t rank,
                              ReadNumber(get, names.launcher, names.rank, 0, size - 1,
                                         UpTo(0, size - 1, names.world_size, size)));
  SHARDPROOF_ASSIGN_OR_RETURN(const int32_t local_size,
                              ReadNumber(get, names.launcher, names.local_world_size, 1, size,
                                         UpTo(1, size, names.world_size, size)));
  SHARDPROOF_ASSIGN_OR_RETURN(
      const int32_t local_rank,
      ReadNumber(get, names.launcher, names.local_rank, 0, local_size - 1,
                 UpTo(0, local_size - 1, names.local_world_size, local_size)));
  result.world_size = WorldSize{size};
  result.rank = Rank{rank};
  result.local_world_size = local_size;
  result.local_rank = local_rank;
  return absl::OkStatus();
}

absl::StatusOr<LaunchEnvironment> ReadTorchrun(const GetEnvironment& get) {
  LaunchEnvironment result;
  result.launcher = Launcher::kTorchrun;
  SHARDPROOF_RETURN_IF_ERROR(ReadRanks(get, kTorchrunNames, result));
  SHARDPROOF_ASSIGN_OR_RETURN(result.master_address,
                              ReadText(get, kTorchrunNames.launcher, kMasterAddress));
  if (result.master_address.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment variable ", kMasterAddress,
                     " is empty; accepted: a host name or address of the machine of rank 0"));
  }
  SHARDPROOF_ASSIGN_OR_RETURN(
      result.master_port,
      ReadNumber(get, kTorchrunNames.launcher, kMasterPort, 1, 65534,
                 "a port from 1 to 65534, for torchrun holds it and the next ones are ours"));
  if (const char* const run_id = get(kRunId)) result.run_id = run_id;
  return result;
}

// Scripts pass mpirun's numbers on under torchrun's names: fine as long as they are the same.
absl::Status CheckAgreement(const GetEnvironment& get) {
  const std::pair<const char*, const char*> pairs[] = {
      {kMpirunNames.rank, kTorchrunNames.rank},
      {kMpirunNames.world_size, kTorchrunNames.world_size},
      {kMpirunNames.local_rank, kTorchrunNames.local_rank},
      {kMpirunNames.local_world_size, kTorchrunNames.local_world_size}};
  for (const auto& [mpirun_name, torchrun_name] : pairs) {
    const char* const text = get(torchrun_name);
    if (text == nullptr) continue;
    int32_t mpirun_value = 0;
    int32_t torchrun_value = 0;
    if (absl::SimpleAtoi(get(mpirun_name), &mpirun_value) &&
        absl::SimpleAtoi(text, &torchrun_value) && mpirun_value == torchrun_value) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the environment variables of two launchers disagree: ", mpirun_name, " is \"",
        get(mpirun_name), "\" and ", torchrun_name, " is \"", text,
        "\"; accepted: the same number in both, or the variables of one launcher only"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LaunchEnvironment> ReadMpirun(const GetEnvironment& get) {
  LaunchEnvironment result;
  result.launcher = Launcher::kMpirun;
  SHARDPROOF_RETURN_IF_ERROR(ReadRanks(get, kMpirunNames, result));
  if (IsTorchrun(get)) SHARDPROOF_RETURN_IF_ERROR(CheckAgreement(get));
  return result;
}

}  // namespace

absl::string_view Name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "none";
    case Launcher::kMpirun:
      return kMpirunNames.launcher;
    case Launcher::kTorchrun:
      return kTorchrunNames.launcher;
  }
  return "unknown";
}

absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(const GetEnvironment& get) {
  if (IsMpirun(get)) return ReadMpirun(get);
  if (IsTorchrun(get)) return ReadTorchrun(get);
  return LaunchEnvironment{};
}

}  // namespace shardproof
