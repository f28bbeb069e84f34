// The list of what the trainer refuses is a reviewed file: it must be exactly what happens, in
// every mode and engine, and what is not in it must run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "invariants/run_description/parse.h"
#include "invariants/suite/mode_rows.h"
#include "invariants/suite/run_case.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

constexpr char kList[] = "fixtures/refusals/refusals.txt";
constexpr EngineKind kEngines[] = {EngineKind::kCpu, EngineKind::kAccounting,
                                   EngineKind::kProvenance};

struct Refusal {
  std::string ask;
  std::string modes;
  std::string engines;
  std::string reason;
};

std::vector<Refusal> ReadList() {
  std::vector<Refusal> list;
  std::ifstream file(kList);
  EXPECT_TRUE(file.is_open()) << kList;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> parts = absl::StrSplit(line, " | ");
    EXPECT_EQ(parts.size(), 4u) << line;
    if (parts.size() == 4) list.push_back({parts[0], parts[1], parts[2], parts[3]});
  }
  return list;
}

bool Names(absl::string_view list, absl::string_view name) {
  if (list == "all") return true;
  for (const absl::string_view entry : absl::StrSplit(list, ',')) {
    if (entry == name) return true;
  }
  return false;
}

CaseResult ResultOf(const ModeRow& row, EngineKind engine, absl::string_view ask) {
  const std::string line = absl::StartsWith(ask, "model=")
                               ? std::string(ask)
                               : absl::StrCat("model=probe:5,3x2,4;", ask);
  absl::StatusOr<RunDescription> run =
      ParseRun(absl::StrCat(line, ";world_size=2;num_micro_batches=2"), ImportModel);
  EXPECT_TRUE(run.ok()) << line << ": " << run.status();
  ApplyModeRow(row, LayoutKind::kFlat, run->sharding);
  absl::StatusOr<CaseResult> result = RunCase(*run, {.engine = engine});
  EXPECT_TRUE(result.ok()) << line << ": " << result.status();
  return result.ok() ? *result : CaseResult();
}

TEST(Refusals, AreThoseOfTheReviewedList) {
  const std::vector<Refusal> list = ReadList();
  EXPECT_FALSE(list.empty());
  for (const Refusal& refusal : list) {
    for (const ModeRow& row : AllModeRows()) {
      for (EngineKind engine : kEngines) {
        const CaseResult result = ResultOf(row, engine, refusal.ask);
        const bool refused =
            Names(refusal.modes, Name(row.mode)) && Names(refusal.engines, Name(engine));
        SCOPED_TRACE(absl::StrCat(refusal.ask, " in ", Name(row.mode), " on ", Name(engine)));
        EXPECT_EQ(result.verdict == Verdict::kRefused, refused);
        if (refused) {
          EXPECT_EQ(result.refusal, refusal.reason);
        }
      }
    }
  }
}

// One of each feature that random cases draw. A refusal of any belongs into the list.
TEST(Refusals, DoNotTouchWhatTheTrainerDoes) {
  for (const char* ask :
       {"clip_grad_norm=0.5", "model=probe:5,3x2,5;ties=t2:t0", "usage=1@rank:1@steps:even",
        "usage=0@micro_batch:1,2@steps:never", "groups=0+2@learning_rate:0.1@weight_decay:0",
        "frozen=0,2", "model=probe:0,3,4", "optimizer=sgd;momentum=0", "bucket_cap_bytes=1",
        "bucket_cap_bytes=20", "grad_sync=last", "scale_before_reduce=1", "units=0+2!,1"}) {
    for (const ModeRow& row : AllModeRows()) {
      for (EngineKind engine : kEngines) {
        const CaseResult result = ResultOf(row, engine, ask);
        EXPECT_EQ(result.verdict, Verdict::kPass)
            << ask << " in " << Name(row.mode) << " on " << Name(engine) << ": " << result.refusal;
      }
    }
  }
}

}  // namespace
}  // namespace shardproof
