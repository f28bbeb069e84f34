#include "invariants/suite/shared_verdict.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

// No message holds a NUL, so it separates the fields.
constexpr char kSeparator = '\0';
constexpr absl::string_view kYes = "1";

constexpr absl::Duration kGrace = absl::Seconds(10);

std::string Packed(const EngineVerdict& verdict) {
  std::string bytes;
  const std::string fields[] = {std::string(verdict.passes ? kYes : ""),
                                std::string(verdict.is_bad_input ? kYes : ""), verdict.cause,
                                verdict.headline, verdict.details};
  for (const std::string& field : fields) {
    bytes += field;
    bytes += kSeparator;
  }
  return bytes;
}

absl::StatusOr<EngineVerdict> Unpacked(absl::string_view bytes, EngineKind engine) {
  const std::vector<std::string> fields = absl::StrSplit(bytes, kSeparator);
  if (fields.size() != 6) {
    return absl::InternalError(absl::StrCat("a verdict of ", fields.size(), " fields, not 6"));
  }
  return EngineVerdict{.engine = engine,
                       .passes = fields[0] == kYes,
                       .is_bad_input = fields[1] == kYes,
                       .cause = fields[2],
                       .headline = fields[3],
                       .details = fields[4]};
}

// On rank 0: the verdict that all ranks go on with.
absl::StatusOr<EngineVerdict> Decided(const EngineVerdict& mine,
                                      const std::vector<std::string>& verdicts) {
  if (!mine.passes) return mine;
  for (size_t rank = 1; rank < verdicts.size(); ++rank) {
    SHARDPROOF_ASSIGN_OR_RETURN(EngineVerdict other, Unpacked(verdicts[rank], mine.engine));
    if (other.passes) continue;
    other.headline = absl::StrCat("rank ", rank, ": ", other.headline);
    return other;
  }
  return mine;
}

}  // namespace

absl::StatusOr<EngineVerdict> SharedVerdicts::Meet(const EngineVerdict& mine,
                                                   absl::Duration timeout) {
  const std::string key = absl::StrCat("suite/verdict/", cases_++);
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<std::string> verdicts,
                              job_.Gather(Packed(mine), timeout));
  if (job_.rank().value == 0) {
    SHARDPROOF_ASSIGN_OR_RETURN(EngineVerdict decided, Decided(mine, verdicts));
    SHARDPROOF_RETURN_IF_ERROR(job_.Set(key, Packed(decided)));
    return decided;
  }
  SHARDPROOF_ASSIGN_OR_RETURN(const std::string decided, job_.Await(key, "rank 0", timeout));
  return Unpacked(decided, mine.engine);
}

absl::StatusOr<EngineVerdict> SharedVerdicts::Share(const EngineVerdict& mine) {
  absl::StatusOr<EngineVerdict> decided =
      Meet(mine, mine.passes ? timeout_ : std::min(timeout_, kGrace));
  if (decided.ok() || mine.passes) return decided;
  // What this rank has found is why the others are gone, or says more of them than their silence.
  return absl::Status(decided.status().code(),
                      absl::StrCat(decided.status().message(), "; before, here: ", mine.headline));
}

}  // namespace shardproof
