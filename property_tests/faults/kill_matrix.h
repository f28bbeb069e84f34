// The kill matrix as text: which checks find which faults, and what that says about checks.
#ifndef PROPERTY_TESTS_FAULTS_KILL_MATRIX_H_
#define PROPERTY_TESTS_FAULTS_KILL_MATRIX_H_

#include <string>
#include <vector>

#include "property_tests/faults/edit_campaign.h"
#include "property_tests/faults/fault.h"
#include "property_tests/faults/kill.h"

namespace shardproof {

struct FaultOutcome {
  Fault fault;
  KillReport report;
};

// One line a fault, one column a check: x where it objects, . where not. Remarks() at the end.
std::string MatrixText(const std::vector<FaultOutcome>& outcomes);
// For each check, how many expressible faults it finds and how many nothing else does.
std::string UniqueKillsText(const std::vector<FaultOutcome>& outcomes);
// How many expressible faults each of the five classic checks finds, and all five together.
std::string ClassicText(const std::vector<FaultOutcome>& outcomes);
// The generated edits by kind: how many, and what became of them.
std::string EditsText(const std::vector<EditOutcome>& outcomes);
// "ROWS rows, EXPRESSIBLE expressible, KILLED killed, WAITING waiting", before it a line that names
// the rows that are no faults: with those, the expressible and the waiting ones are all rows.
// Before that, the stand-ins of waiting rows, and how many expressible rows model a symptom.
std::string SummaryText(const std::vector<FaultOutcome>& outcomes);

// What is wrong with the outcome of a fault or edit, with how to run it again; empty if nothing.
std::string Complaint(const FaultOutcome& outcome);
std::string Complaint(const EditOutcome& outcome);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_KILL_MATRIX_H_
