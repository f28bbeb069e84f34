// Enums and their lower-case names: one table serves printing and parsing.
#ifndef INVARIANTS_RUN_DESCRIPTION_NAME_TABLE_H_
#define INVARIANTS_RUN_DESCRIPTION_NAME_TABLE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shardproof {

template <typename E>
struct NameTableEntry {
  E value;
  absl::string_view name;
};

// The name, or "?" for a value that the table lacks.
template <typename E, size_t n>
absl::string_view NameIn(const NameTableEntry<E> (&table)[n], E value) {
  for (const NameTableEntry<E>& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

// InvalidArgument: "WHAT 'text' is unknown; accepted: ...".
template <typename E, size_t n>
absl::StatusOr<E> ParseIn(const NameTableEntry<E> (&table)[n], absl::string_view what,
                          absl::string_view text) {
  std::string accepted;
  for (const NameTableEntry<E>& entry : table) {
    if (entry.name == text) return entry.value;
    absl::StrAppend(&accepted, accepted.empty() ? "" : ", ", entry.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, " '", text, "' is unknown; accepted: ", accepted));
}

}  // namespace shardproof

#endif  // INVARIANTS_RUN_DESCRIPTION_NAME_TABLE_H_
