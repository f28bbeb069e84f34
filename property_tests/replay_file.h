// Replay files: a case that failed once, to be run again.
//
// One JSON object:
//   schema    "shardproof.replay/1"
//   engine    "cpu", "accounting", "provenance", "cuda" or "cuda_shared": where it failed
//   found_by  text for people: who found it, and what was wrong
//   run       the run, an object of schema "shardproof.run/1" (run_description/parse.h)
//
// The run is written out in full, so that a file means the same when importers change.
#ifndef PROPERTY_TESTS_REPLAY_FILE_H_
#define PROPERTY_TESTS_REPLAY_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/run_case.h"

namespace shardproof {

struct ReplayFile {
  EngineKind engine = EngineKind::kCpu;
  std::string found_by;
  RunDescription run;
};

// InvalidArgument in one line that names the offending key or value and what is accepted: no JSON,
// another schema, unknown, repeated or missing keys, a run that ParseRunJson refuses. `importer`
// reads a model that is given as text.
absl::StatusOr<ReplayFile> ParseReplay(absl::string_view json, const ModelImporter& importer);

// ParseReplay reads it back as the same.
std::string PrintReplay(const ReplayFile& replay);

// The file's content through ParseReplay; every error begins with the path. NotFound or
// InvalidArgument when there is no such file, or nothing that can be read.
absl::StatusOr<ReplayFile> ReadReplayFile(const std::string& path, const ModelImporter& importer);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_REPLAY_FILE_H_
