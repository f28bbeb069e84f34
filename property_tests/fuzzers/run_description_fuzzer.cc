// The parsers of RunDescription: lines, and JSON where the input begins with '{'.
//
// No input may crash them. An accepted one is valid, and survives being printed and read again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "invariants/run_description/parse.h"
#include "property_tests/fuzzers/fuzz_checks.h"

namespace shardproof {
namespace {

void CheckLine(const RunDescription& run) {
  const std::string line = PrintRun(run);
  const absl::StatusOr<RunDescription> again = ParseRun(line, ImportSmallText);
  FuzzCheck(again.ok(), "a printed line is refused", line + "\n" + again.status().ToString());
  FuzzCheck(PrintRun(*again) == line, "a line changes when it is read", line);
}

void CheckJson(const RunDescription& run) {
  const std::string json = PrintRunJson(run);
  const absl::StatusOr<RunDescription> again = ParseRunJson(json, nullptr);
  FuzzCheck(again.ok(), "printed JSON is refused", json + "\n" + again.status().ToString());
  FuzzCheck(PrintRunJson(*again) == json, "JSON changes when it is read", json);
}

void TestOneInput(absl::string_view text) {
  const bool is_json = !text.empty() && text[0] == '{';
  const absl::StatusOr<RunDescription> run =
      is_json ? ParseRunJson(text, ImportSmallText) : ParseRun(text, ImportSmallText);
  CheckMessage(run.status());
  if (!run.ok()) return;
  FuzzCheck(Validate(*run).ok(), "an invalid run was accepted", text);
  CheckJson(*run);
  // A line has no words for a model that was written out.
  if (!is_json) CheckLine(*run);
}

}  // namespace
}  // namespace shardproof

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shardproof::TestOneInput({reinterpret_cast<const char*>(data), size});
  return 0;
}
