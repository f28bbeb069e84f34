// Fault: one public bug, seeded in the reference trainer from outside.
//
// A fault is an edit of EngineParts: of the placement before plans are made from it, of the
// plans, or a decorator of each rank's communicator. It comes with the smallest run in which
// it shows and the checks that must find it there.
#ifndef PROPERTY_TESTS_FAULTS_FAULT_H_
#define PROPERTY_TESTS_FAULTS_FAULT_H_

#include <functional>
#include <string>
#include <vector>

#include "invariants/run_description/run_description.h"
#include "trainer/engines/engine_parts.h"

namespace shardproof {

// The killer of faults whose public symptom is a hang or a crash: the engine or the
// communicator ends the run with an error that names the ranks and what each waited for.
inline constexpr char kEngineError[] = "engine_error";

// `parts` are those of PlannedParts(run), or of an earlier edit.
using PartsEdit = std::function<EngineParts(const RunDescription& run, EngineParts parts)>;

struct Fault {
  std::string row;                   // FaultRow::id, which has the name and the threads
  std::string wrong;                 // what is wrong here, in one sentence
  std::string run;                   // a line of RunDescription (run_description/parse.h)
  std::vector<std::string> killers;  // checks, or kEngineError: every one must find it
  PartsEdit apply;
  // Nothing is wrong: users took it for a fault, and every check must pass.
  bool benign = false;
};

// A row that the trainer cannot express yet.
struct WaitingRow {
  std::string row;
  std::string feature;  // what it waits for
};

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_FAULT_H_
