#include "invariants/run_description/flags.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

struct Parsed {
  int64_t steps = 3;
  double rate = 0.5;
  uint64_t seed = 1;
  bool explain = false;
  std::string model = "mlp:2x2";
  absl::Status status;
};

Parsed Parse(std::vector<const char*> arguments) {
  Parsed parsed;
  Flags flags("a test");
  flags.Int("steps", &parsed.steps, 1, 10, "optimizer steps");
  flags.Double("rate", &parsed.rate, 0, 1, "a rate");
  flags.Unsigned("seed", &parsed.seed, "a seed");
  flags.Bool("explain", &parsed.explain, "explains");
  flags.String("model", &parsed.model, "a model");
  arguments.insert(arguments.begin(), "program");
  parsed.status = flags.Parse(static_cast<int>(arguments.size()), arguments.data());
  return parsed;
}

TEST(Flags, ReadsValuesAfterAnEqualsSignOrAsTheNextArgument) {
  const Parsed parsed =
      Parse({"--steps=7", "--model", "mlp:3,4", "--explain", "--seed=18446744073709551615"});
  ASSERT_TRUE(parsed.status.ok()) << parsed.status;
  EXPECT_EQ(parsed.steps, 7);
  EXPECT_EQ(parsed.model, "mlp:3,4");
  EXPECT_TRUE(parsed.explain);
  EXPECT_EQ(parsed.seed, 18446744073709551615u);
  EXPECT_EQ(parsed.rate, 0.5);
}

TEST(Flags, NamesTheBadValueAndWhatIsAccepted) {
  for (const char* bad : {"--steps=0", "--steps=11", "--steps=9999999999999999999", "--steps=x",
                          "--steps=", "--steps=1.5"}) {
    const absl::Status status = Parse({bad}).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad));
    EXPECT_THAT(std::string(status.message()), HasSubstr("a whole number from 1 to 10"));
  }
  EXPECT_FALSE(Parse({"--rate=nan"}).status.ok());
  EXPECT_FALSE(Parse({"--rate=2"}).status.ok());
  EXPECT_FALSE(Parse({"--seed=-1"}).status.ok());
  EXPECT_FALSE(Parse({"--explain=maybe"}).status.ok());
}

TEST(Flags, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(std::string(Parse({"--stepz=1"}).status.message()),
              HasSubstr("unknown flag --stepz; accepted: --steps"));
  EXPECT_THAT(std::string(Parse({"steps"}).status.message()), HasSubstr("'steps' is no flag"));
  EXPECT_THAT(std::string(Parse({"--steps=1", "--steps=2"}).status.message()), HasSubstr("twice"));
  EXPECT_THAT(std::string(Parse({"--steps"}).status.message()), HasSubstr("needs a value"));
}

}  // namespace
}  // namespace shardproof
