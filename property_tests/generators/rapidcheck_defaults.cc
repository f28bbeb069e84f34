#include "property_tests/generators/rapidcheck_defaults.h"

#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace shardproof {

void SetRapidCheckDefaults(int32_t max_success) {
  const char* given = std::getenv("RC_PARAMS");
  std::string parameters = given == nullptr ? "" : given;
  // A reproduce string brings its own seed.
  if (!absl::StrContains(parameters, "seed=") && !absl::StrContains(parameters, "reproduce=")) {
    absl::StrAppend(&parameters, " seed=20261129");
  }
  if (!absl::StrContains(parameters, "max_success=")) {
    absl::StrAppend(&parameters, " max_success=", max_success);
  }
  setenv("RC_PARAMS", parameters.c_str(), /*overwrite=*/1);
}

}  // namespace shardproof
