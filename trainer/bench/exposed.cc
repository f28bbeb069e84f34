#include "trainer/bench/exposed.h"

#include <algorithm>
#include <vector>

namespace shardproof {
namespace {

struct Edge {
  int64_t time_ns = 0;
  int32_t collectives = 0;  // +1: one begins, -1: one ends
  int32_t others = 0;
};

}  // namespace

int64_t ExposedCommunicationNs(absl::Span<const KernelSpan> spans, int32_t device) {
  std::vector<Edge> edges;
  for (const KernelSpan& span : spans) {
    if (span.device != device) continue;
    const int32_t collective = span.collective ? 1 : 0;
    edges.push_back({span.start_ns, collective, 1 - collective});
    edges.push_back({span.end_ns, -collective, collective - 1});
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return a.time_ns < b.time_ns; });
  int64_t exposed = 0;
  int64_t since = 0;
  int32_t collectives = 0;
  int32_t others = 0;
  for (const Edge& edge : edges) {
    if (collectives > 0 && others == 0) exposed += edge.time_ns - since;
    since = edge.time_ns;
    collectives += edge.collectives;
    others += edge.others;
  }
  return exposed;
}

}  // namespace shardproof
