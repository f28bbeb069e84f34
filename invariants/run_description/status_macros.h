// SHARDPROOF_RETURN_IF_ERROR and SHARDPROOF_ASSIGN_OR_RETURN: leave a function that
// returns absl::Status or absl::StatusOr when an expression fails. Debian's Abseil has
// no status_macros.h of its own.
//
//   SHARDPROOF_RETURN_IF_ERROR(Validate(run));
//   SHARDPROOF_ASSIGN_OR_RETURN(const Mode mode, ParseMode(text));
#ifndef INVARIANTS_RUN_DESCRIPTION_STATUS_MACROS_H_
#define INVARIANTS_RUN_DESCRIPTION_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define SHARDPROOF_CONCAT_INNER_(a, b) a##b
#define SHARDPROOF_CONCAT_(a, b) SHARDPROOF_CONCAT_INNER_(a, b)

#define SHARDPROOF_RETURN_IF_ERROR(expression)                \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)

#define SHARDPROOF_ASSIGN_OR_RETURN(target, expression) \
  SHARDPROOF_ASSIGN_OR_RETURN_IMPL_(SHARDPROOF_CONCAT_(status_or_, __LINE__), target, expression)

#define SHARDPROOF_ASSIGN_OR_RETURN_IMPL_(holder, target, expression) \
  auto holder = (expression);                                         \
  if (!holder.ok()) return holder.status();                           \
  target = *std::move(holder)

#endif  // INVARIANTS_RUN_DESCRIPTION_STATUS_MACROS_H_
