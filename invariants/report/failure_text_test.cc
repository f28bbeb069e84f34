#include "invariants/report/failure_text.h"

#include <string>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

Violation Wrong(int32_t rank, const std::string& rule) {
  Violation violation;
  violation.rule = rule;
  violation.rank = rank;
  violation.step = 2;
  violation.tensor = "layers.0.weight";
  violation.element = 7;
  violation.expected = "0.5";
  violation.actual = "2";
  violation.ratio = 4;
  violation.likely_cause = "a divisor that is missing";
  return violation;
}

TEST(FailureText, TellsARuleOnceAndThenOnlyWhereElse) {
  CheckResult check;
  check.violations = {Wrong(0, "gradients are right"), Wrong(1, "gradients are right"),
                      Wrong(2, "moments are right"), Wrong(3, "gradients are right")};
  check.violation_count = 4;
  EXPECT_EQ(FailureText(check),
            "  rule      gradients are right\n"
            "  at        rank 0, step 2, tensor layers.0.weight, element 7\n"
            "  expected  0.5\n"
            "  found     2 (ratio 4)\n"
            "  cause     a divisor that is missing\n"
            "  also at   rank 1, step 2, tensor layers.0.weight, element 7 (ratio 4)\n"
            "            rank 3, step 2, tensor layers.0.weight, element 7 (ratio 4)\n"
            "\n"
            "  rule      moments are right\n"
            "  at        rank 2, step 2, tensor layers.0.weight, element 7\n"
            "  expected  0.5\n"
            "  found     2 (ratio 4)\n"
            "  cause     a divisor that is missing\n");
}

TEST(FailureText, CountsWhatItLeavesOut) {
  CheckResult check;
  for (int32_t rank = 0; rank < kMaxViolations; ++rank) {
    check.violations.push_back(Wrong(rank, "gradients are right"));
  }
  check.violation_count = kMaxViolations + 1;
  const std::string text = FailureText(check);
  EXPECT_NE(text.find("            and 9 more\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  and 1 violation more, not listed\n"), std::string::npos) << text;
}

TEST(FailureText, LeavesOutWhatIsNotKnown) {
  CheckResult check;
  Violation violation;
  violation.rule = "every rank is shown";
  violation.actual = "none";
  check.violations = {violation};
  check.violation_count = 1;
  EXPECT_EQ(FailureText(check),
            "  rule      every rank is shown\n"
            "  found     none\n");
}

}  // namespace
}  // namespace shardproof
