// What every JSON document that people write must satisfy before it is read: valid syntax,
// no key twice in an object (a parser would keep one and drop the other in silence), and
// nesting shallow enough to print a value in a message.
#ifndef INVARIANTS_RUN_DESCRIPTION_JSON_SYNTAX_H_
#define INVARIANTS_RUN_DESCRIPTION_JSON_SYNTAX_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shardproof {

// InvalidArgument, one line: the place and reason ("parse error at line 3, column 7: ..."),
// or the repeated key. After OK, a JSON parser takes the same text without an error.
absl::Status CheckJsonSyntax(absl::string_view text);

}  // namespace shardproof

#endif  // INVARIANTS_RUN_DESCRIPTION_JSON_SYNTAX_H_
