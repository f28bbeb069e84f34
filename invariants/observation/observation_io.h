// The file in which any trainer shows a run, so that it can be checked without our interface:
// JSON, one object a line. Fields are those of observation.h under the same names, enum values
// are the lower-case names of Name(), and a field that has its default may be left out.
//
//   line 1   {"schema":"shardproof.observation/1","run":RUN}
//            RUN is the run in JSON (run_description/parse.h, schema shardproof.run/1).
//   line 2.. one step each, in order: {"step":0,"events":[..],"states":[..],"losses":[..],
//            "any_order":false,"clips":[{"norm":2.5,"coefficient":0.4},..],"devices":[..]}
//            There are as many as RUN's steps: a run that ended early is not a run.
//   events   one entry for each rank or group of like ranks:
//            {"ranks":[first,stride,count],"buffers":[..],"live_before":[id,..],"events":[..]}
//     buffers  {"role":"parameter","elements":8,"dtype":..,"tier":..,"unit":..,"bucket":..}
//     events   {"kind":"collective","stream":"communication","phase":..,"collective":..,
//              "purpose":..,"dtype":..,"completed":..,"group":[first,stride,count],"root":..,
//              "elements":..,"micro_batch":..,"unit":..,"bucket":..,"tensor":..,"stage":..,
//              "stage_count":..,"waits":[event,..],"accesses":[..]}
//     accesses {"buffer":0,"kind":"read","first":0,"count":8,"version":..}
//   states   {"ranks":[first,stride,count],"bytes":{"parameter":..,"gradient":..,
//            "optimizer":..,"padding":..,"scalar":..},"segments":[..],
//            "steps":[{"tensor":0,"updates":1},..]}
//     segments {"state":"exp_avg","tensor":0,"first":0,"count":6,"buffer":..,
//              "buffer_offset":..,"values":[..]}
//            tensor -1 is padding. values may be left out (not observed), else has `count`
//            numbers that round to the float32 meant; non-finite ones are the strings "inf",
//            "-inf" and "nan:0x7fc01234" with the bits, for payloads are evidence.
//   devices  {"rank":0,"collective_kernels":[2,0,0,8,0],"steady_bytes":..,"peak_bytes":..}: kernels
//            by kind, all_reduce, all_gather, reduce_scatter, broadcast, barrier; or none
//   losses, clips: one for each rank, or none. A norm is a double; numbers are written as values
//            are.
//   Required: step, ranks, role, elements of a buffer, kind, buffer of an access, state, tensor
//   and count of a segment, rank of a device, and both fields of an entry of steps and of clips.
//
// Errors: InvalidArgument that names the line, the field, its value and what is accepted. Unknown
// and repeated keys are errors. What is well-formed but wrong, such as a segment beyond its
// tensor or a wait on a later event, is read: to judge it is the checks' work.
#ifndef INVARIANTS_OBSERVATION_OBSERVATION_IO_H_
#define INVARIANTS_OBSERVATION_OBSERVATION_IO_H_

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// Lines of the file, without the newline.
std::string PrintObservationHeader(const RunDescription& run);
enum class Values : uint8_t { kWrite, kOmit };
std::string PrintObservationStep(const StepObservation& step, Values values = Values::kWrite);

// One step and the values that its segments point to. Moving keeps the pointers.
struct StoredStep {
  StoredStep() = default;
  StoredStep(StoredStep&&) = default;
  StoredStep& operator=(StoredStep&&) = default;
  StoredStep(const StoredStep&) = delete;
  StoredStep& operator=(const StoredStep&) = delete;

  StepObservation observation;
  std::vector<std::vector<float>> storage;
};

// Reads a file step by step, so that one step at a time is in memory.
class ObservationReader {
 public:
  // Reads the first line. `input` outlives the reader; `importer` resolves a model that RUN
  // names instead of writing it out.
  static absl::StatusOr<ObservationReader> Open(std::istream* input, const ModelImporter& importer);

  const RunDescription& run() const { return run_; }
  // The next step; nothing after the last.
  absl::StatusOr<std::optional<StoredStep>> Next();

 private:
  ObservationReader(std::istream* input, RunDescription run)
      : input_(input), run_(std::move(run)) {}
  absl::Status CheckOrder(int64_t step);

  std::istream* input_;
  RunDescription run_;
  int64_t line_ = 1;
  int64_t steps_read_ = 0;
  int64_t last_step_ = -1;
};

}  // namespace shardproof

#endif  // INVARIANTS_OBSERVATION_OBSERVATION_IO_H_
