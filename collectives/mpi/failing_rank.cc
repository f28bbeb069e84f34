// A job of which one rank fails, for failing_rank_test.sh: failing_rank HOW DIRECTORY.
//
// Ranks add in a loop, and in the third round rank 2
//   killed     kills itself
//   stopped    stops itself, before it calls
//   stopped_in stops itself in the collective, with the data on its way
//   leaves     returns an error
//   never      does none of that
// Or rank 2
//   cuts       has other MpiOptions from the beginning
// Every rank leaves a file in DIRECTORY whose name is its process id.
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/communicator.h"
#include "collectives/mpi/mpi_ranks.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr int64_t kElements = int64_t{1} << 20;
constexpr Rank kFailing{2};

absl::Status Work(World& world, const std::string& how) {
  const Rank self = world.local_ranks()[0];
  SHARDPROOF_ASSIGN_OR_RETURN(Communicator* const all,
                              world.communicator(self, Group{0, 1, world.size().value}));
  std::vector<float> values(kElements, 1.0f);
  CollectiveCall call;
  call.kind = CollectiveKind::kAllReduce;
  call.elements = kElements;
  call.send = call.recv = values.data();
  for (call.label = 0; call.label < 5; ++call.label) {
    const bool fails = self == kFailing && call.label == 2;
    if (fails && how == "killed") std::raise(SIGKILL);
    if (fails && how == "stopped") std::raise(SIGSTOP);
    if (fails && how == "leaves") return absl::InternalError("rank 2 has had enough");
    SHARDPROOF_ASSIGN_OR_RETURN(const CollectiveHandle handle, all->Start(call));
    if (fails && how == "stopped_in") std::raise(SIGSTOP);
    SHARDPROOF_RETURN_IF_ERROR(all->Wait(handle, world.patience()));
  }
  return absl::OkStatus();
}

int Main(const std::string& how, const std::string& directory) {
  std::ofstream(absl::StrCat(directory, "/", getpid())) << "\n";
  MpiOptions options;
  options.timeout = absl::Seconds(4);
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (how == "cuts" && rank != nullptr && std::string(rank) == "2") options.message_bytes = 1024;
  const auto world = CreateMpiRanks(options);
  if (!world.ok()) {
    std::cerr << world.status().message() << "\n";
    return 2;
  }
  const absl::Status status = Work(**world, how);
  if (status.ok()) return 0;
  // With a rank that left the others can end as they are.
  if (how != "leaves") (*world)->Abort(status, 3);
  std::cerr << status.message() << "\n";
  return 3;
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return argc == 3 ? shardproof::Main(argv[1], argv[2]) : 2; }
