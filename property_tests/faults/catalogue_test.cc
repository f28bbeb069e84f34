#include "property_tests/faults/catalogue.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "property_tests/faults/fault_rows.h"
#include "property_tests/faults/kill.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CatalogueTest, RowsHaveNamesClassesAndThreads) {
  std::set<std::string> names;
  for (const FaultRow& row : FaultRows()) {
    EXPECT_TRUE(names.insert(std::string(row.id)).second) << row.id;
    EXPECT_TRUE(names.insert(std::string(row.name)).second) << row.name;
    EXPECT_NE(ClassTitle(row.id[0]), "") << row.id;
    for (absl::string_view thread : absl::StrSplit(row.threads, ", ")) {
      const std::vector<absl::string_view> parts = absl::StrSplit(thread, '#');
      ASSERT_EQ(parts.size(), 2) << row.id << " " << thread;
      EXPECT_TRUE(absl::StrContains(parts[0], '/')) << thread;
      EXPECT_NE(parts[1], "") << thread;
    }
    EXPECT_EQ(FindRow(row.id), &row);
    EXPECT_EQ(FindRow(row.name), &row);
  }
  EXPECT_EQ(ClassTitle('Z'), "");
  EXPECT_EQ(FindRow("Z1"), nullptr);
}

TEST(CatalogueTest, EveryRowIsAFaultOrWaits) {
  std::map<std::string, int> times;
  std::vector<std::string> stand_ins;
  for (const Fault& fault : AllFaults()) {
    if (WaitsFor(fault.row).empty()) {
      ++times[fault.row];
    } else {
      stand_ins.push_back(fault.row);
      EXPECT_FALSE(fault.benign) << fault.row;
    }
  }
  for (const WaitingRow& waiting : WaitingRows()) {
    ++times[waiting.row];
    EXPECT_NE(waiting.feature, "") << waiting.row;
  }
  for (const FaultRow& row : FaultRows()) {
    EXPECT_EQ(times[std::string(row.id)], 1) << row.id << " " << row.name;
  }
  EXPECT_EQ(times.size(), FaultRows().size()) << "an entry for a row that does not exist";
  EXPECT_THAT(stand_ins,
              ElementsAre("A1", "A10", "D11", "E2", "F4", "M5", "M10", "N5", "P1", "P4", "Q5"));
}

// Rows of one missing part wait for it together.
TEST(CatalogueTest, SiblingsWaitAlike) {
  for (const std::vector<const char*>& siblings :
       std::vector<std::vector<const char*>>{{"A1", "A5", "A7", "A8", "A10", "P1", "P4", "P5"},
                                             {"D11", "G13", "P10"},
                                             {"C13", "N5", "N7", "N8"},
                                             {"M5", "M10", "O1"},
                                             {"Q1", "Q2", "Q5"}}) {
    for (const char* row : siblings) EXPECT_EQ(WaitsFor(row), WaitsFor(siblings[0])) << row;
    EXPECT_NE(WaitsFor(siblings[0]), "");
  }
  for (const char* row : {"G7", "G8", "I7", "J4"}) EXPECT_EQ(WaitsFor(row), "") << row;
}

TEST(CatalogueTest, RemarksTellWhatIsModelled) {
  EXPECT_EQ(Remarks(*FindFault("A4")), "models the symptom");
  EXPECT_EQ(Remarks(*FindFault("A11")), "");
  EXPECT_EQ(Remarks(*FindFault("C17")), "no fault");
  EXPECT_EQ(Remarks(*FindFault("M10")),
            "models the symptom; stand-in, the row waits for offload tiers");
}

TEST(CatalogueTest, FaultsAreComplete) {
  const std::vector<std::string> known = KillerNames();
  for (const Fault& fault : AllFaults()) {
    EXPECT_TRUE(absl::EndsWith(fault.wrong, ".")) << fault.row;
    EXPECT_EQ(fault.killers.empty(), fault.benign) << fault.row;
    EXPECT_NE(fault.apply, nullptr) << fault.row;
    for (const std::string& killer : fault.killers) {
      EXPECT_NE(std::find(known.begin(), known.end(), killer), known.end())
          << fault.row << ": unknown check " << killer;
    }
    const absl::StatusOr<RunDescription> run = ParseFaultRun(fault.run);
    EXPECT_TRUE(run.ok()) << fault.row << ": " << run.status();
  }
}

TEST(CatalogueTest, FindsByNameAndRow) {
  const absl::StatusOr<Fault> by_name = FindFault("reduce_scatter_sums_instead_of_mean");
  ASSERT_TRUE(by_name.ok()) << by_name.status();
  EXPECT_EQ(by_name->row, "A2");
  const absl::StatusOr<Fault> by_row = FindFault("A2");
  ASSERT_TRUE(by_row.ok()) << by_row.status();
}

TEST(CatalogueTest, UnknownNameListsCloseOnes) {
  const absl::Status typo = FindFault("reduce_scatter_sum_instead_of_mean").status();
  EXPECT_EQ(typo.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(typo.message(), "close: reduce_scatter_sums_instead_of_mean"))
      << typo;
  EXPECT_TRUE(absl::StrContains(FindFault("xyz").status().message(), "--list"));
  const absl::Status waiting = FindFault("save_mutates_live_optimizer").status();
  EXPECT_TRUE(absl::StrContains(waiting.message(), "waits for checkpoints")) << waiting;
}

TEST(CatalogueTest, ClosestNameComesFirst) {
  EXPECT_THAT(CloseNames("abcdefgi", {"abcdefgx", "zzzz", "abcdefgi_more", "abcdefgh"}),
              ElementsAre("abcdefgi_more", "abcdefgx", "abcdefgh"));
  EXPECT_THAT(CloseNames("begins_alike_and_goes_on", {"begins_alike_and_ends", "begins"}),
              ElementsAre("begins_alike_and_ends"));
  EXPECT_THAT(CloseNames("", {"alpha"}), IsEmpty());
  EXPECT_THAT(CloseNames("q", {"alpha", "beta"}), IsEmpty());
}

}  // namespace
}  // namespace shardproof
