// Random sequences of commands on a live trainer, with replicated training as the model.
//
// Between the steps of a real program lie evaluations, forward passes without backward, failed
// steps, dropped gradients and looks at whole parameters. After every command the trainer must
// be idle (nothing unsharded, nothing transient allocated), its state that of the model, bit for
// bit, and a training step must pass all nine checks.
#ifndef PROPERTY_TESTS_SEQUENCES_SEQUENCE_H_
#define PROPERTY_TESTS_SEQUENCES_SEQUENCE_H_

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"
#include "rapidcheck.h"
#include "trainer/engines/live_trainer.h"

namespace shardproof {

enum class CommandKind : uint8_t {
  kTrain,
  kForward,   // of the next step's data; no backward follows
  kEvaluate,  // of other data
  kFail,      // an exception in the middle of a step; a later kTrain repeats it
  kDropGradients,
  kView,         // reads whole parameters on every rank
  kEdit,         // edits them in a view, and writes back
  kDiscardEdit,  // edits them in a view, and does not
};

struct Command {
  CommandKind kind = CommandKind::kTrain;
  // kFail: hundredths of the step that were done. kEvaluate: which data. Edits: which tensor.
  int32_t operand = 0;
  bool operator==(const Command&) const = default;
};

// "train,fail:40,train,edit:2": what a failure prints and ParseSequence reads.
std::string PrintSequence(const std::vector<Command>& commands);
// InvalidArgument with the command and what is accepted.
absl::StatusOr<std::vector<Command>> ParseSequence(absl::string_view text);

// Up to twelve commands; shrinks to fewer, and to training steps.
rc::Gen<std::vector<Command>> AnySequence();

// Ok: every command left what it should. Unimplemented: the trainer refuses the run.
// FailedPrecondition: the finding, with the command, its place, the rank, and for a training step
// the check's own words. Other errors: the trainer's.
absl::Status RunSequence(const RunDescription& run, const std::vector<Command>& commands,
                         const LivePlans& plans = PlannedCommands());

std::ostream& operator<<(std::ostream& out, const Command& command);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_SEQUENCES_SEQUENCE_H_
