// The suite's score: every fault that can be seeded today, and every small edit of the plans,
// against every check. Fails on a survivor.
#include "property_tests/faults/kill_matrix.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "property_tests/faults/catalogue.h"
#include "property_tests/faults/edit_campaign.h"
#include "property_tests/faults/kill.h"

namespace shardproof {
namespace {

// Cases share nothing, so threads take them one by one.
void ForEachInParallel(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  const auto take = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> threads;
  const size_t wanted = std::max(1u, std::min(4u, std::thread::hardware_concurrency()));
  for (size_t i = 0; i < std::min(wanted, count); ++i) threads.emplace_back(take);
  for (std::thread& thread : threads) thread.join();
}

std::vector<ReviewedEdit> ReviewedEdits() {
  const char kPath[] = "property_tests/faults/reviewed_edits.txt";
  std::ifstream file(kPath);
  EXPECT_TRUE(file.good()) << kPath;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  absl::StatusOr<std::vector<ReviewedEdit>> entries = ParseReviewedEdits(text);
  EXPECT_TRUE(entries.ok()) << entries.status();
  return entries.ok() ? *std::move(entries) : std::vector<ReviewedEdit>{};
}

// What was found of every fault, found once for all tests.
class KillMatrixTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (Fault& fault : AllFaults()) outcomes_.push_back({std::move(fault), {}});
    ForEachInParallel(outcomes_.size(), [](size_t i) {
      const absl::StatusOr<RunDescription> run = ParseFaultRun(outcomes_[i].fault.run);
      if (run.ok()) outcomes_[i].report = RunEdited(*run, outcomes_[i].fault.apply);
    });
  }
  // The last line is the one to look for.
  static void TearDownTestSuite() { std::cout << "\n" << SummaryText(outcomes_); }

  static std::vector<FaultOutcome> outcomes_;
};

std::vector<FaultOutcome> KillMatrixTest::outcomes_;

TEST_F(KillMatrixTest, RunsWithoutFaultsPass) {
  std::set<std::string> distinct;
  for (const Fault& fault : AllFaults()) distinct.insert(fault.run);
  for (const EditRun& run : EditRuns()) distinct.insert(run.line);
  const std::vector<std::string> lines(distinct.begin(), distinct.end());
  std::vector<std::string> complaints(lines.size());
  ForEachInParallel(lines.size(), [&](size_t i) {
    const absl::StatusOr<RunDescription> run = ParseFaultRun(lines[i]);
    if (!run.ok()) {
      complaints[i] = std::string(run.status().message());
      return;
    }
    const KillReport report = RunEdited(*run, {});
    const bool passes = !Killed(report) && report.classic.empty() && report.unjudged.empty();
    if (passes && report.refusal.empty()) return;
    complaints[i] =
        absl::StrCat(absl::StrJoin(report.killers, ", "), " ", absl::StrJoin(report.classic, ", "),
                     " unjudged: ", absl::StrJoin(report.unjudged, ", "), " ", report.refusal, " ",
                     report.error.message());
  });
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(complaints[i], "") << lines[i];
}

TEST_F(KillMatrixTest, EveryFaultIsKilled) {
  std::cout << "\n"
            << MatrixText(outcomes_) << "\n"
            << UniqueKillsText(outcomes_) << "\n"
            << ClassicText(outcomes_) << "\n";
  for (const FaultOutcome& outcome : outcomes_) EXPECT_EQ(Complaint(outcome), "");
}

TEST_F(KillMatrixTest, EveryEditIsKilledOrEquivalent) {
  const std::vector<ReviewedEdit> reviewed = ReviewedEdits();
  const std::vector<EditRun> runs = EditRuns();
  std::vector<absl::StatusOr<std::vector<EditOutcome>>> judged(
      runs.size(), absl::StatusOr<std::vector<EditOutcome>>(std::vector<EditOutcome>{}));
  ForEachInParallel(runs.size(), [&](size_t i) { judged[i] = JudgeEdits(runs[i], reviewed); });
  std::vector<EditOutcome> outcomes;
  for (size_t i = 0; i < runs.size(); ++i) {
    ASSERT_TRUE(judged[i].ok()) << runs[i].line << ": " << judged[i].status();
    outcomes.insert(outcomes.end(), judged[i]->begin(), judged[i]->end());
  }
  std::cout << "\n" << EditsText(outcomes) << "\n";
  std::vector<bool> used(reviewed.size(), false);
  for (const EditOutcome& outcome : outcomes) {
    EXPECT_EQ(Complaint(outcome), "");
    if (outcome.reviewed >= 0) used[outcome.reviewed] = true;
  }
  for (size_t i = 0; i < reviewed.size(); ++i) {
    EXPECT_TRUE(used[i]) << "no edit survives that this entry speaks of: " << reviewed[i].run
                         << " | " << reviewed[i].edit;
  }
}

}  // namespace
}  // namespace shardproof
