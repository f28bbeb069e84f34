// Random cases of the whole space on one engine: every check passes.
//
// The seed is fixed; RC_PARAMS="seed=7" changes it, SHARDPROOF_CASES=5000 the number of cases.
#include "property_tests/random_cases.h"

#include <iostream>

#include "gtest/gtest.h"
#include "invariants/run_description/flags.h"
#include "property_tests/generators/rapidcheck_defaults.h"

namespace shardproof {
namespace {

class RandomRuns : public testing::Test {
 public:
  explicit RandomRuns(std::vector<EngineKind> engines) : engines_(std::move(engines)) {}
  void TestBody() override {
    const std::string report =
        CheckRandomCases({.name = "every check passes", .engines = engines_});
    if (!report.empty()) ADD_FAILURE() << "\n" << report;
  }

 private:
  const std::vector<EngineKind> engines_;
};

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  SetRapidCheckDefaults(/*max_success=*/1500);
  std::string engine = "cpu";
  Flags flags("random cases of the whole space");
  flags.String("engine", &engine, "cpu, provenance, accounting or all");
  const absl::Status parsed = flags.Parse(argc, argv);
  const absl::StatusOr<std::vector<EngineKind>> engines = ParseEngines(engine);
  if (!parsed.ok() || !engines.ok()) {
    std::cerr << "random_cases_test: " << (parsed.ok() ? engines.status() : parsed).message()
              << "\n";
    return 2;
  }
  testing::RegisterTest("RandomRuns", "Pass", nullptr, nullptr, __FILE__, __LINE__,
                        [&engines]() -> testing::Test* { return new RandomRuns(*engines); });
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
