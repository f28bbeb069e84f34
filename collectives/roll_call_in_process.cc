#include "collectives/roll_call_in_process.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/roll_call_answers.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

class RollCallInProcess final : public RollCall {
 public:
  void Answer(Rank rank, Group group, int64_t position, const CollectiveCall& call) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Book& book = BookOf(group);
    const int32_t member = (rank.value - group.first) / group.stride;
    for (int32_t other = 0; other < group.count && book.disagreement.ok(); ++other) {
      const auto theirs = book.members[other].At(position);
      if (other == member || !theirs.has_value() || Agree(call, theirs->call)) continue;
      book.disagreement =
          DisagreementAt(group, position, group.member(other), theirs->call, rank, call);
    }
    book.members[member].Add({position, call});
  }

  absl::Status Disagreement(Group group) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return BookOf(group).disagreement;
  }

  absl::Status Explain(Rank rank, Group group, int64_t position) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Book& book = BookOf(group);
    if (!book.disagreement.ok()) return book.disagreement;
    std::vector<MemberAnswer> members(group.count);
    for (int32_t member = 0; member < group.count; ++member) {
      const AnswerRing& ring = book.members[member];
      members[member].arrived = ring.last_position() >= position;
      if (const auto answer = ring.At(position)) members[member].call = answer->call;
      members[member].last = ring.At(ring.last_position());
    }
    const auto& own = members[(rank.value - group.first) / group.stride];
    return ExplainAnswers(rank, group, position, own.call.value_or(CollectiveCall()), members);
  }

 private:
  struct Book {
    Group group;
    std::vector<AnswerRing> members;
    absl::Status disagreement;
  };

  Book& BookOf(const Group& group) {
    for (const auto& book : books_) {
      if (book->group == group) return *book;
    }
    books_.push_back(std::make_unique<Book>(
        Book{group, std::vector<AnswerRing>(group.count), absl::OkStatus()}));
    return *books_.back();
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Book>> books_;
};

}  // namespace

std::unique_ptr<RollCall> MakeRollCallInProcess() { return std::make_unique<RollCallInProcess>(); }

}  // namespace shardproof
