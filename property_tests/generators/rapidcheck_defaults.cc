#include "property_tests/generators/rapidcheck_defaults.h"

#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace shardproof {

std::optional<int64_t> CaseBudget() {
  const char* const given = std::getenv("SHARDPROOF_CASES");
  int64_t cases = 0;
  if (given == nullptr) return std::nullopt;
  if (!absl::SimpleAtoi(given, &cases) || cases < 1) {
    std::cerr << "SHARDPROOF_CASES='" << given << "' is ignored; accepted: a whole number from 1\n";
    return std::nullopt;
  }
  return cases;
}

void SetRapidCheckDefaults(int32_t max_success) {
  const char* given = std::getenv("RC_PARAMS");
  std::string parameters = given == nullptr ? "" : given;
  // A reproduce string brings its own seed.
  if (!absl::StrContains(parameters, "seed=") && !absl::StrContains(parameters, "reproduce=")) {
    absl::StrAppend(&parameters, " seed=20261129");
  }
  if (!absl::StrContains(parameters, "max_success=")) {
    absl::StrAppend(&parameters, " max_success=", CaseBudget().value_or(max_success));
  }
  setenv("RC_PARAMS", parameters.c_str(), /*overwrite=*/1);
}

}  // namespace shardproof
