#include "trainer/bench/exposed.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

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

ExposedTimes ExposedOfStep(absl::Span<const KernelSpan> spans, absl::Span<const int32_t> devices,
                           int64_t collectives) {
  ExposedTimes times;
  for (const int32_t device : devices) {
    const int64_t seen = std::count_if(spans.begin(), spans.end(), [&](const KernelSpan& span) {
      return span.device == device && span.collective;
    });
    if (seen != collectives) {
      return {.missing = absl::StrCat(seen, " kernels of collectives were recorded on GPU ", device,
                                      " in a step that has ", collectives)};
    }
    times.ms.push_back(static_cast<double>(ExposedCommunicationNs(spans, device)) / 1e6);
  }
  return times;
}

}  // namespace shardproof
