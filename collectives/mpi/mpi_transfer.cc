#include "collectives/mpi/mpi_transfer.h"

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/simulated/rank_order_sum.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

MpiTransfer::MpiTransfer(MPI_Comm comm, int64_t message_bytes, const Group& group, int32_t member,
                         const CollectiveCall& call, std::vector<int32_t> tags)
    : group_(group),
      member_(member),
      call_(call),
      tags_(std::move(tags)),
      element_bytes_(DtypeBytes(call.dtype)),
      chunk_elements_(message_bytes / element_bytes_),
      parts_(comm, message_bytes),
      exchange_(comm, message_bytes) {}

absl::StatusOr<bool> MpiTransfer::Advance() {
  if (phase_ == Phase::kBegin) SHARDPROOF_RETURN_IF_ERROR(Begin());
  while (phase_ == Phase::kAdd) {
    SHARDPROOF_ASSIGN_OR_RETURN(const bool received, exchange_.Test());
    if (!received) return false;
    AddChunk();
    if (added_ == Part(member_).count) {
      phase_ = Phase::kSendParts;
    } else {
      SHARDPROOF_RETURN_IF_ERROR(ReceiveChunk());
    }
  }
  if (phase_ == Phase::kSendParts) {
    // An all-gather in place overwrites the parts that were sent.
    SHARDPROOF_ASSIGN_OR_RETURN(const bool sent, parts_.Test());
    if (!sent || call_.kind == CollectiveKind::kReduceScatter) return sent;
    SHARDPROOF_RETURN_IF_ERROR(BeginGather());
  }
  return exchange_.Test();
}

std::vector<Rank> MpiTransfer::Awaited() {
  std::vector<Rank> ranks = exchange_.Awaited();
  const std::vector<Rank> readers = parts_.Awaited();
  ranks.insert(ranks.end(), readers.begin(), readers.end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// Of an all_reduce parts differ by at most an element; the others' are equal.
ElementRange MpiTransfer::Part(int32_t member) const {
  const int64_t quotient = call_.elements / group_.count;
  const int64_t remainder = call_.elements % group_.count;
  const int64_t first = member * quotient + std::min<int64_t>(member, remainder);
  return {first, quotient + (member < remainder ? 1 : 0)};
}

const char* MpiTransfer::send(int64_t element) const {
  return static_cast<const char*>(call_.send) + element * element_bytes_;
}

char* MpiTransfer::recv(int64_t element) const {
  return static_cast<char*>(call_.recv) + element * element_bytes_;
}

// Beginning after this member, so that not all members send to the same one first.
template <typename Function>
absl::Status MpiTransfer::ForEachOther(Function function) const {
  for (int32_t step = 1; step < group_.count; ++step) {
    SHARDPROOF_RETURN_IF_ERROR(function((member_ + step) % group_.count));
  }
  return absl::OkStatus();
}

absl::Status MpiTransfer::Begin() {
  if (call_.kind == CollectiveKind::kBroadcast) return BeginBroadcast();
  if (call_.kind != CollectiveKind::kAllGather) return BeginReduction();
  const ElementRange own = Part(member_);
  if (send(0) != recv(own.first)) {
    std::memcpy(recv(own.first), call_.send, own.count * element_bytes_);
  }
  return BeginGather();
}

absl::Status MpiTransfer::BeginBroadcast() {
  phase_ = Phase::kExchange;
  const int64_t bytes = call_.elements * element_bytes_;
  const int32_t root = (call_.root.value - group_.first) / group_.stride;
  if (member_ != root) return exchange_.Receive(call_.recv, bytes, call_.root, tags_[root]);
  if (call_.send != call_.recv) std::memcpy(call_.recv, call_.send, bytes);
  return ForEachOther([&](int32_t other) {
    return exchange_.Send(call_.send, bytes, group_.member(other), tags_[member_]);
  });
}

// This member's part of recv is complete.
absl::Status MpiTransfer::BeginGather() {
  phase_ = Phase::kExchange;
  const ElementRange own = Part(member_);
  return ForEachOther([&](int32_t other) {
    const ElementRange part = Part(other);
    SHARDPROOF_RETURN_IF_ERROR(exchange_.Receive(recv(part.first), part.count * element_bytes_,
                                                 group_.member(other), tags_[other] + 1));
    return exchange_.Send(recv(own.first), own.count * element_bytes_, group_.member(other),
                          tags_[member_] + 1);
  });
}

absl::Status MpiTransfer::BeginReduction() {
  phase_ = Phase::kAdd;
  // Aligned for any dtype.
  const int64_t doubles = (std::min(chunk_elements_, Part(member_).count) * element_bytes_ + 7) / 8;
  chunk_stride_ = doubles * 8;
  received_ = std::make_unique_for_overwrite<std::byte[]>(chunk_stride_ * (group_.count - 1));
  SHARDPROOF_RETURN_IF_ERROR(ForEachOther([&](int32_t other) {
    const ElementRange part = Part(other);
    return parts_.Send(send(part.first), part.count * element_bytes_, group_.member(other),
                       tags_[member_]);
  }));
  return ReceiveChunk();
}

// What is added next, from the part's first element.
ElementRange MpiTransfer::Chunk() const {
  return {added_, std::min(chunk_elements_, Part(member_).count - added_)};
}

std::byte* MpiTransfer::received(int32_t other) const {
  return received_.get() + chunk_stride_ * (other < member_ ? other : other - 1);
}

absl::Status MpiTransfer::ReceiveChunk() {
  return ForEachOther([&](int32_t other) {
    return exchange_.Receive(received(other), Chunk().count * element_bytes_, group_.member(other),
                             tags_[other]);
  });
}

void MpiTransfer::AddChunk() {
  if (call_.dtype == Dtype::kFloat64) return AddChunkOf<double>();
  AddChunkOf<float>();
}

template <typename T>
void MpiTransfer::AddChunkOf() {
  const ElementRange chunk = Chunk();
  const int64_t first = Part(member_).first;
  std::vector<const T*> inputs(group_.count);
  for (int32_t other = 0; other < group_.count; ++other) {
    if (other != member_) inputs[other] = reinterpret_cast<const T*>(received(other));
  }
  inputs[member_] = reinterpret_cast<const T*>(send(first + chunk.first));
  const bool scatters = call_.kind == CollectiveKind::kReduceScatter;
  T* const sum = reinterpret_cast<T*>(recv((scatters ? 0 : first) + chunk.first));
  SumInRankOrder(inputs, chunk.count, sum);
  added_ += chunk.count;
}

}  // namespace shardproof
