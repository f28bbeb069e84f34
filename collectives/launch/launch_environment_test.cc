#include "collectives/launch/launch_environment.h"

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<LaunchEnvironment> Read(const Variables& variables) {
  return ReadLaunchEnvironment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables Mpirun() {
  return {{"OMPI_COMM_WORLD_RANK", "5"},
          {"OMPI_COMM_WORLD_SIZE", "8"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
}

Variables Torchrun() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "node0"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RUN_ID", "night"}};
}

// Sets `variables` or, for a null value, removes.
Variables With(Variables variables, const std::string& name, const char* value) {
  variables.erase(name);
  if (value != nullptr) variables[name] = value;
  return variables;
}

// The error names the variable, its value in quotes and what is accepted.
void ExpectRefused(const Variables& variables, const std::string& name, const char* accepted) {
  const absl::StatusOr<LaunchEnvironment> environment = Read(variables);
  ASSERT_FALSE(environment.ok()) << name;
  EXPECT_EQ(environment.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(environment.status().message());
  EXPECT_THAT(message, HasSubstr(name));
  EXPECT_THAT(message, HasSubstr(accepted));
  const auto found = variables.find(name);
  if (found != variables.end() && !found->second.empty()) {
    EXPECT_THAT(message, HasSubstr("\"" + found->second + "\""));
  }
}

TEST(LaunchEnvironmentTest, WithoutALauncherAllRanksAreInThisProcess) {
  const absl::StatusOr<LaunchEnvironment> environment = Read({{"PATH", "/bin"}});
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->launcher, Launcher::kNone);
  EXPECT_EQ(environment->rank, Rank{0});
  EXPECT_EQ(environment->world_size, WorldSize{1});
  EXPECT_EQ(environment->local_rank, 0);
  EXPECT_EQ(environment->local_world_size, 1);
}

TEST(LaunchEnvironmentTest, ReadsMpirun) {
  const absl::StatusOr<LaunchEnvironment> environment = Read(Mpirun());
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->launcher, Launcher::kMpirun);
  EXPECT_EQ(environment->rank, Rank{5});
  EXPECT_EQ(environment->world_size, WorldSize{8});
  EXPECT_EQ(environment->local_rank, 1);
  EXPECT_EQ(environment->local_world_size, 4);
}

TEST(LaunchEnvironmentTest, ReadsTorchrun) {
  const absl::StatusOr<LaunchEnvironment> environment = Read(Torchrun());
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->launcher, Launcher::kTorchrun);
  EXPECT_EQ(environment->rank, Rank{5});
  EXPECT_EQ(environment->world_size, WorldSize{8});
  EXPECT_EQ(environment->local_rank, 1);
  EXPECT_EQ(environment->local_world_size, 4);
  EXPECT_EQ(environment->master_address, "node0");
  EXPECT_EQ(environment->master_port, 29500);
  EXPECT_EQ(environment->run_id, "night");
}

TEST(LaunchEnvironmentTest, TheRunIdMayBeMissing) {
  const absl::StatusOr<LaunchEnvironment> environment =
      Read(With(Torchrun(), "TORCHELASTIC_RUN_ID", nullptr));
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->launcher, Launcher::kTorchrun);
  EXPECT_EQ(environment->run_id, "");
}

TEST(LaunchEnvironmentTest, WhatShellsExportForOtherProgramsIsNoLaunch) {
  const Variables left_over[] = {{{"RANK", "0"}},
                                 {{"WORLD_SIZE", "many"}},
                                 {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}}};
  for (const Variables& variables : left_over) {
    const absl::StatusOr<LaunchEnvironment> environment = Read(variables);
    ASSERT_TRUE(environment.ok()) << environment.status();
    EXPECT_EQ(environment->launcher, Launcher::kNone);
  }
}

TEST(LaunchEnvironmentTest, PartOfTorchrunsVariablesIsRefused) {
  for (const auto& [name, value] : Torchrun()) {
    if (name == "TORCHELASTIC_RUN_ID") continue;
    ExpectRefused(With(Torchrun(), name, nullptr), name, "missing while others of torchrun");
  }
  // The least that is more than a left-over.
  ExpectRefused({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "LOCAL_WORLD_SIZE", "missing");
  ExpectRefused({{"RANK", "0"}, {"MASTER_ADDR", "localhost"}}, "WORLD_SIZE", "missing");
  ExpectRefused({{"LOCAL_RANK", "0"}}, "WORLD_SIZE", "missing");
  ExpectRefused({{"TORCHELASTIC_RUN_ID", "night"}}, "WORLD_SIZE", "missing");
}

TEST(LaunchEnvironmentTest, PartOfMpirunsVariablesIsRefused) {
  for (const auto& [name, value] : Mpirun()) {
    ExpectRefused(With(Mpirun(), name, nullptr), name, "missing while others of mpirun");
  }
}

TEST(LaunchEnvironmentTest, NumbersOutOfRangeAreRefused) {
  struct Case {
    const char* name;
    const char* value;
    const char* accepted;
  };
  const Case cases[] = {
      {"RANK", "-1", "from 0 to 7"},
      {"RANK", "8", "from 0 to 7, as WORLD_SIZE is 8"},
      {"RANK", "five", "from 0 to 7"},
      {"RANK", "", "from 0 to 7"},
      {"RANK", "1.5", "from 0 to 7"},
      {"RANK", "99999999999999", "from 0 to 7"},
      {"WORLD_SIZE", "0", "from 1"},
      {"WORLD_SIZE", "-8", "from 1"},
      {"WORLD_SIZE", "8 ranks", "from 1"},
      {"LOCAL_RANK", "-1", "from 0 to 3"},
      {"LOCAL_RANK", "4", "from 0 to 3, as LOCAL_WORLD_SIZE is 4"},
      {"LOCAL_RANK", "x", "from 0 to 3"},
      {"LOCAL_WORLD_SIZE", "0", "from 1 to 8"},
      {"LOCAL_WORLD_SIZE", "9", "from 1 to 8, as WORLD_SIZE is 8"},
      {"LOCAL_WORLD_SIZE", "x", "from 1 to 8"},
      {"MASTER_ADDR", "", "host name"},
      {"MASTER_PORT", "0", "from 1 to 65534"},
      {"MASTER_PORT", "65535", "from 1 to 65534"},
      {"MASTER_PORT", "http", "from 1 to 65534"},
  };
  for (const Case& item : cases) {
    ExpectRefused(With(Torchrun(), item.name, item.value), item.name, item.accepted);
  }
  ExpectRefused(With(Mpirun(), "OMPI_COMM_WORLD_RANK", "8"), "OMPI_COMM_WORLD_RANK",
                "from 0 to 7, as OMPI_COMM_WORLD_SIZE is 8");
  ExpectRefused(With(Mpirun(), "OMPI_COMM_WORLD_LOCAL_RANK", "4"), "OMPI_COMM_WORLD_LOCAL_RANK",
                "from 0 to 3");
  ExpectRefused(With(Mpirun(), "OMPI_COMM_WORLD_SIZE", "0"), "OMPI_COMM_WORLD_SIZE", "from 1");
  ExpectRefused(With(Mpirun(), "OMPI_COMM_WORLD_LOCAL_SIZE", "9"), "OMPI_COMM_WORLD_LOCAL_SIZE",
                "from 1 to 8");
}

TEST(LaunchEnvironmentTest, BothLaunchersThatAgreeAreMpirun) {
  Variables both = Torchrun();
  both.merge(Mpirun());
  absl::StatusOr<LaunchEnvironment> environment = Read(both);
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->launcher, Launcher::kMpirun);
  EXPECT_EQ(environment->rank, Rank{5});

  // Only part of torchrun's names: they are mpirun's numbers, passed on by a script.
  environment = Read(With(With(both, "MASTER_PORT", nullptr), "LOCAL_WORLD_SIZE", nullptr));
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->launcher, Launcher::kMpirun);
}

TEST(LaunchEnvironmentTest, BothLaunchersThatDisagreeAreRefused) {
  Variables both = Torchrun();
  both.merge(Mpirun());
  const std::pair<const char*, const char*> names[] = {
      {"RANK", "OMPI_COMM_WORLD_RANK"},
      {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
      {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"},
      {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}};
  for (const auto& [torchrun, mpirun] : names) {
    ExpectRefused(With(both, torchrun, "2"), torchrun, "disagree");
    ExpectRefused(With(both, torchrun, "2"), mpirun, "the same number in both");
    ExpectRefused(With(both, torchrun, "two"), torchrun, "disagree");
  }
}

TEST(LaunchEnvironmentTest, MpirunIgnoresAShellsLeftOver) {
  const absl::StatusOr<LaunchEnvironment> environment = Read(With(Mpirun(), "RANK", "0"));
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->rank, Rank{5});
}

TEST(LaunchEnvironmentTest, LaunchersHaveNames) {
  EXPECT_EQ(Name(Launcher::kNone), "none");
  EXPECT_EQ(Name(Launcher::kMpirun), "mpirun");
  EXPECT_EQ(Name(Launcher::kTorchrun), "torchrun");
}

}  // namespace
}  // namespace shardproof
