// The public record of faults in sharded trainers: one row a fault, with its threads.
//
// A row is a bug that users or maintainers of a public trainer met: where it was reported and
// what we call it. Rows are facts; what goes wrong here is told by the Fault that models a row
// (fault.h) or by the feature that it waits for.
#ifndef PROPERTY_TESTS_FAULTS_FAULT_ROWS_H_
#define PROPERTY_TESTS_FAULTS_FAULT_ROWS_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shardproof {

struct FaultRow {
  absl::string_view id;       // class letter and number: "A2"
  absl::string_view name;     // "reduce_scatter_sums_instead_of_mean"
  absl::string_view threads;  // "owner/repo#number", the main one first, joined by ", "
  // The threads tell what was seen and no cause: a fault of this row models the symptom.
  bool symptom_only = false;
};

// All rows, by class and number. Numbers have gaps: rows that tell the same fault were merged.
absl::Span<const FaultRow> FaultRows();

// Null when there is no row of that id or name.
const FaultRow* FindRow(absl::string_view id_or_name);

// "Averaging factor, missing or wrong-group reduction" for 'A'; "" for an unknown letter.
absl::string_view ClassTitle(char letter);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_FAULT_ROWS_H_
