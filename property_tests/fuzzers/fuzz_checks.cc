#include "property_tests/fuzzers/fuzz_checks.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

constexpr size_t kLongestMessage = 2000;

// "mlp:99999x1" has ten characters and many layers.
bool HasLongNumber(absl::string_view text) {
  size_t digits = 0;
  for (const char c : text) {
    digits = absl::ascii_isdigit(static_cast<unsigned char>(c)) ? digits + 1 : 0;
    if (digits > 3) return true;
  }
  return false;
}

}  // namespace

void FuzzCheck(bool holds, absl::string_view what, absl::string_view detail) {
  if (holds) return;
  std::cerr << "FUZZ CHECK FAILED: " << what << ": " << detail << std::endl;
  std::abort();
}

void CheckMessage(const absl::Status& status) {
  if (status.ok()) return;
  const absl::string_view message = status.message();
  FuzzCheck(!message.empty(), "an error without a message", status.ToString());
  FuzzCheck(std::none_of(message.begin(), message.end(),
                         [](char c) { return c == '\n' || c == '\r' || c == '\0'; }),
            "a message of more than one line", message);
  FuzzCheck(message.size() <= kLongestMessage, "a message that nobody reads", message);
}

absl::StatusOr<ModelDescription> ImportSmallText(absl::string_view text) {
  const bool is_shapes = (absl::StartsWith(text, "mlp:") || absl::StartsWith(text, "probe:")) &&
                         text.find_first_of("/.") == absl::string_view::npos;
  if (!is_shapes || HasLongNumber(text)) {
    return absl::InvalidArgumentError("the fuzzer imports mlp: and probe: with short numbers");
  }
  return ImportModel(text);
}

}  // namespace shardproof
