// Text of any origin (names in files, flags) in an error message.
#ifndef INVARIANTS_RUN_DESCRIPTION_MESSAGE_TEXT_H_
#define INVARIANTS_RUN_DESCRIPTION_MESSAGE_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace shardproof {

// At most 100 bytes, then "..."; control characters become '?', so that a message stays on
// one line and no longer than a reader bears.
std::string Shown(absl::string_view text);

}  // namespace shardproof

#endif  // INVARIANTS_RUN_DESCRIPTION_MESSAGE_TEXT_H_
