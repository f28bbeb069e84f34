#include "collectives/simulated/move_buffers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "collectives/simulated/rank_order_sum.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// Elements that are read and written before the next are touched: a block is still in the
// first-level cache when it is copied to the other members.
constexpr int64_t kBlock = 4096;

// In-place calls make source and destination the same address.
template <typename T>
void Copy(const T* from, int64_t count, T* to) {
  if (from != to) std::memcpy(to, from, count * sizeof(T));
}

template <typename T>
const T* SendOf(const CollectiveCall& call) {
  return static_cast<const T*>(call.send);
}

template <typename T>
T* RecvOf(const CollectiveCall& call) {
  return static_cast<T*>(call.recv);
}

// Member 0 receives the sum of a block before the others get a copy of it: the block of every
// send buffer has been read when the first receive buffer is written.
template <typename T>
void AllReduce(absl::Span<const CollectiveCall> calls, absl::Span<const T*> inputs) {
  const int64_t elements = calls[0].elements;
  for (int64_t first = 0; first < elements; first += kBlock) {
    const int64_t size = std::min(kBlock, elements - first);
    for (size_t member = 0; member < calls.size(); ++member) {
      inputs[member] = SendOf<T>(calls[member]) + first;
    }
    T* const sum = RecvOf<T>(calls[0]) + first;
    SumInRankOrder(inputs, size, sum);
    for (size_t member = 1; member < calls.size(); ++member) {
      Copy(sum, size, RecvOf<T>(calls[member]) + first);
    }
  }
}

// Part p of the sum goes to member p, whose receive buffer may be part p of its send buffer:
// no other member's sum reads that part.
template <typename T>
void ReduceScatter(absl::Span<const CollectiveCall> calls, absl::Span<const T*> inputs) {
  const int64_t part_elements = calls[0].elements / static_cast<int64_t>(calls.size());
  for (size_t part = 0; part < calls.size(); ++part) {
    for (size_t member = 0; member < calls.size(); ++member) {
      inputs[member] = SendOf<T>(calls[member]) + part * part_elements;
    }
    SumInRankOrder(inputs, part_elements, RecvOf<T>(calls[part]));
  }
}

// Sender by sender, so that a block is read from memory once. A receive buffer may hold its
// own member's part only, so no copy overwrites what a later one reads.
template <typename T>
void AllGather(absl::Span<const CollectiveCall> calls) {
  const int64_t part_elements = calls[0].elements / static_cast<int64_t>(calls.size());
  for (size_t sender = 0; sender < calls.size(); ++sender) {
    for (int64_t first = 0; first < part_elements; first += kBlock) {
      const int64_t size = std::min(kBlock, part_elements - first);
      const T* const from = SendOf<T>(calls[sender]) + first;
      for (const CollectiveCall& receiver : calls) {
        Copy(from, size, RecvOf<T>(receiver) + sender * part_elements + first);
      }
    }
  }
}

template <typename T>
void Broadcast(absl::Span<const CollectiveCall> calls, int32_t root) {
  const int64_t elements = calls[0].elements;
  for (int64_t first = 0; first < elements; first += kBlock) {
    const int64_t size = std::min(kBlock, elements - first);
    const T* const from = SendOf<T>(calls[root]) + first;
    for (const CollectiveCall& receiver : calls) {
      Copy(from, size, RecvOf<T>(receiver) + first);
    }
  }
}

template <typename T>
void Move(absl::Span<const CollectiveCall> calls, int32_t root, absl::Span<const T*> inputs) {
  switch (calls[0].kind) {
    case CollectiveKind::kAllReduce:
      return AllReduce<T>(calls, inputs);
    case CollectiveKind::kAllGather:
      return AllGather<T>(calls);
    case CollectiveKind::kReduceScatter:
      return ReduceScatter<T>(calls, inputs);
    case CollectiveKind::kBroadcast:
      return Broadcast<T>(calls, root);
    case CollectiveKind::kBarrier:
      return;
  }
}

}  // namespace

void MoveBuffers(absl::Span<const CollectiveCall> calls, int32_t root, InputPointers& inputs) {
  if (calls[0].dtype == Dtype::kFloat64)
    return Move<double>(calls, root, absl::MakeSpan(inputs.float64));
  Move<float>(calls, root, absl::MakeSpan(inputs.float32));
}

}  // namespace shardproof
