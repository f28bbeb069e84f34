// The parser of replay files. No input may crash it; an accepted one survives being printed and
// read again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "property_tests/fuzzers/fuzz_checks.h"
#include "property_tests/replay_file.h"

namespace shardproof {
namespace {

void TestOneInput(absl::string_view json) {
  const absl::StatusOr<ReplayFile> replay = ParseReplay(json, ImportSmallText);
  CheckMessage(replay.status());
  if (!replay.ok()) return;
  const std::string printed = PrintReplay(*replay);
  const absl::StatusOr<ReplayFile> again = ParseReplay(printed, ImportSmallText);
  FuzzCheck(again.ok(), "a printed file is refused", again.status().ToString());
  FuzzCheck(PrintReplay(*again) == printed, "a file changes when it is read", printed);
}

}  // namespace
}  // namespace shardproof

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shardproof::TestOneInput({reinterpret_cast<const char*>(data), size});
  return 0;
}
