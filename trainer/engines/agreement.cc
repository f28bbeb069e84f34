#include "trainer/engines/agreement.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

constexpr char kKnownToAll[] = "shardproof/known_to_all";

// Who has failed waits for others as long as it takes them to find the same, not longer. Rank 0
// gives up first, so that the others hear of it.
constexpr absl::Duration kGraceOfLeader = absl::Seconds(2);
constexpr absl::Duration kGraceOfFollower = absl::Seconds(10);

// What a rank gives: its bytes or its message, then its code in these. They are at the end so that
// what comes before need not move when they are taken off.
using Code = int32_t;

std::string CodeOf(const absl::Status& status) {
  const Code code = static_cast<Code>(status.code());
  return std::string(reinterpret_cast<const char*>(&code), sizeof(code));
}

// Takes the code off.
absl::Status Unpack(std::string& packed) {
  Code code = 0;
  if (packed.size() < sizeof(code)) {
    return absl::InternalError(absl::StrCat("an answer of ", packed.size(), " bytes"));
  }
  const size_t rest = packed.size() - sizeof(code);
  std::memcpy(&code, packed.data() + rest, sizeof(code));
  packed.resize(rest);
  if (code == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code), packed);
}

// Errors that say that somebody else was waited for.
bool IsAboutOthers(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
}

absl::Status KnownToAll(absl::Status status) {
  if (!status.ok()) status.SetPayload(kKnownToAll, absl::Cord("1"));
  return status;
}

}  // namespace

bool IsKnownToAll(const absl::Status& status) { return status.GetPayload(kKnownToAll).has_value(); }

absl::Status Agreement::Conclude(const absl::Status& mine) { return Gather(mine, {}).status(); }

absl::StatusOr<std::vector<std::string>> Agreement::Gather(const absl::Status& mine,
                                                           Pieces pieces) {
  const std::string key = absl::StrCat("agreement ", meetings_++);
  if (job_.rank().value == 0) return Lead(mine, pieces, key);
  SHARDPROOF_RETURN_IF_ERROR(Follow(mine, pieces, key));
  return std::vector<std::string>();
}

absl::StatusOr<std::vector<std::string>> Agreement::Give(const absl::Status& mine, Pieces pieces,
                                                         absl::Duration timeout) {
  const std::string code = CodeOf(mine);
  std::vector<absl::string_view> given(pieces.begin(), pieces.end());
  if (!mine.ok()) given = {mine.message()};
  given.push_back(code);
  return job_.GatherPieces(given, timeout);
}

absl::StatusOr<std::vector<std::string>> Agreement::Lead(const absl::Status& mine, Pieces pieces,
                                                         const std::string& key) {
  absl::StatusOr<std::vector<std::string>> given =
      Give(mine, pieces, mine.ok() ? timeout_ : std::min(timeout_, kGraceOfLeader));
  absl::Status cause;
  if (given.ok()) {
    for (std::string& one : *given) {
      const absl::Status status = Unpack(one);
      if (!status.ok() && (cause.ok() || (IsAboutOthers(cause) && !IsAboutOthers(status)))) {
        cause = status;
      }
    }
  } else {
    cause = mine.ok() ? given.status() : mine;
  }
  // Nobody may be left to hear it.
  const absl::Status told = job_.Set(key, absl::StrCat(cause.message(), CodeOf(cause)));
  if (!cause.ok()) {
    // Who leads ends next, and with it what the others would ask: they say when they have heard.
    (void)job_.Gather("", std::min(timeout_, kGraceOfLeader));
    return KnownToAll(cause);
  }
  SHARDPROOF_RETURN_IF_ERROR(told);
  return given;
}

absl::Status Agreement::Follow(const absl::Status& mine, Pieces pieces, const std::string& key) {
  // Rank 0 may wait its whole timeout for another rank, and is heard after that.
  const absl::Duration grace =
      mine.ok() ? timeout_ + kGraceOfFollower : std::min(timeout_, kGraceOfFollower);
  const absl::Status sent = Give(mine, pieces, grace).status();
  absl::StatusOr<std::string> outcome =
      sent.ok() ? job_.Await(key, "rank 0", grace) : absl::StatusOr<std::string>(sent);
  if (!outcome.ok()) return mine.ok() ? outcome.status() : mine;
  const absl::Status agreed = Unpack(*outcome);
  if (!agreed.ok()) (void)job_.Gather("", grace);
  return KnownToAll(agreed);
}

}  // namespace shardproof
