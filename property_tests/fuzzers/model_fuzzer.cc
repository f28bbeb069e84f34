// The importers of models: "mlp:" and "probe:" as text, a config where the input begins with '{',
// and everything else as the first bytes of a safetensors file.
//
// No input may crash them, and what is accepted is a valid model.
#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "invariants/run_description/run_description.h"
#include "property_tests/fuzzers/fuzz_checks.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

absl::StatusOr<ModelDescription> Import(absl::string_view bytes) {
  if (absl::StartsWith(bytes, "mlp:") || absl::StartsWith(bytes, "probe:")) {
    return ImportSmallText(bytes);
  }
  if (absl::StartsWith(bytes, "{")) return ImportConfig("fuzz.json", bytes);
  return ImportSafetensorsHeader("fuzz.safetensors", bytes, static_cast<int64_t>(bytes.size()));
}

void TestOneInput(absl::string_view bytes) {
  absl::StatusOr<ModelDescription> model = Import(bytes);
  CheckMessage(model.status());
  if (!model.ok()) return;
  RunDescription run;
  run.model = *std::move(model);
  const absl::Status valid = Validate(run);
  FuzzCheck(valid.ok(), "an invalid model was accepted", valid.ToString());
  size_t tensors = 0;
  for (const std::vector<int32_t>& of_unit : TensorsOfUnits(run.model)) tensors += of_unit.size();
  FuzzCheck(tensors == run.model.tensors.size(), "a tensor is in no unit", run.model.name);
}

}  // namespace
}  // namespace shardproof

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shardproof::TestOneInput({reinterpret_cast<const char*>(data), size});
  return 0;
}
