#include "collectives/traffic_model.h"

#include <cstdint>

#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// bytes * numerator / denominator, rounded down. Quotient and remainder apart, because the
// product of a large model's bytes and a large world may not fit.
int64_t Fraction(int64_t bytes, int64_t numerator, int64_t denominator) {
  return bytes / denominator * numerator + bytes % denominator * numerator / denominator;
}

}  // namespace

int64_t PayloadBytes(CollectiveKind kind, Dtype dtype, int64_t elements) {
  return kind == CollectiveKind::kBarrier ? 0 : elements * DtypeBytes(dtype);
}

int64_t BusBytes(CollectiveKind kind, int64_t payload_bytes, int32_t members) {
  const int64_t n = members;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return Fraction(payload_bytes, 2 * (n - 1), n);
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return Fraction(payload_bytes, n - 1, n);
    case CollectiveKind::kBroadcast:
      return n == 1 ? 0 : payload_bytes;
    case CollectiveKind::kBarrier:
      return 0;
  }
  return 0;  // Not a kind.
}

}  // namespace shardproof
