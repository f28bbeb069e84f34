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

// What a rank gives: its code in four bytes, then its bytes or its message.
std::string Pack(const absl::StatusOr<std::string>& given) {
  const int32_t code = static_cast<int32_t>(given.status().code());
  std::string packed(sizeof(code), '\0');
  std::memcpy(packed.data(), &code, sizeof(code));
  absl::StrAppend(&packed, given.ok() ? absl::string_view(*given) : given.status().message());
  return packed;
}

absl::StatusOr<std::string> Unpack(std::string packed) {
  int32_t code = 0;
  if (packed.size() < sizeof(code)) {
    return absl::InternalError(absl::StrCat("an answer of ", packed.size(), " bytes"));
  }
  std::memcpy(&code, packed.data(), sizeof(code));
  packed.erase(0, sizeof(code));
  if (code == 0) return packed;
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

absl::Status Agreement::Conclude(const absl::Status& mine) {
  return Gather(mine.ok() ? absl::StatusOr<std::string>("") : mine).status();
}

absl::StatusOr<std::vector<std::string>> Agreement::Gather(
    const absl::StatusOr<std::string>& mine) {
  const std::string key = absl::StrCat("agreement ", meetings_++);
  if (job_.rank().value == 0) return Lead(mine, key);
  SHARDPROOF_RETURN_IF_ERROR(Follow(mine, key));
  return std::vector<std::string>();
}

absl::StatusOr<std::vector<std::string>> Agreement::Lead(const absl::StatusOr<std::string>& mine,
                                                         const std::string& key) {
  absl::StatusOr<std::vector<std::string>> packed =
      job_.Gather(Pack(mine), mine.ok() ? timeout_ : std::min(timeout_, kGraceOfLeader));
  absl::Status cause;
  std::vector<std::string> given;
  if (packed.ok()) {
    for (std::string& one : *packed) {
      absl::StatusOr<std::string> unpacked = Unpack(std::move(one));
      const absl::Status& status = unpacked.status();
      if (!status.ok() && (cause.ok() || (IsAboutOthers(cause) && !IsAboutOthers(status)))) {
        cause = status;
      }
      if (unpacked.ok()) given.push_back(*std::move(unpacked));
    }
  } else {
    cause = mine.ok() ? packed.status() : mine.status();
  }
  // Nobody may be left to hear it.
  const absl::Status told =
      job_.Set(key, Pack(cause.ok() ? absl::StatusOr<std::string>("") : cause));
  if (!cause.ok()) {
    // Who leads ends next, and with it what the others would ask: they say when they have heard.
    (void)job_.Gather("", std::min(timeout_, kGraceOfLeader));
    return KnownToAll(cause);
  }
  SHARDPROOF_RETURN_IF_ERROR(told);
  return given;
}

absl::Status Agreement::Follow(const absl::StatusOr<std::string>& mine, const std::string& key) {
  // Rank 0 may wait its whole timeout for another rank, and is heard after that.
  const absl::Duration grace =
      mine.ok() ? timeout_ + kGraceOfFollower : std::min(timeout_, kGraceOfFollower);
  absl::StatusOr<std::vector<std::string>> sent = job_.Gather(Pack(mine), grace);
  absl::StatusOr<std::string> outcome =
      sent.ok() ? job_.Await(key, "rank 0", grace) : absl::StatusOr<std::string>(sent.status());
  if (!outcome.ok()) return mine.ok() ? outcome.status() : mine.status();
  const absl::Status agreed = Unpack(*std::move(outcome)).status();
  if (!agreed.ok()) (void)job_.Gather("", grace);
  return KnownToAll(agreed);
}

}  // namespace shardproof
