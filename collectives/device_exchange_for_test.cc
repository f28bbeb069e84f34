#include "collectives/device_exchange_for_test.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/device_status.h"
#include "collectives/device_world.h"
#include "gtest/gtest.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

void ExpectOk(cudaError_t result, const char* call) {
  EXPECT_EQ(result, cudaSuccess) << call << ": " << cudaGetErrorString(result);
}

// Device memory that is freed at the end of a scope.
struct Bytes {
  ~Bytes() { ExpectOk(cudaFree(data), "cudaFree"); }
  absl::Status Allocate(size_t bytes) {
    SHARDPROOF_DEVICE_OK(cudaMalloc(&data, std::max<size_t>(bytes, 16)));
    return absl::OkStatus();
  }
  void* data = nullptr;
};

// One collective of one member.
template <typename T>
class Exchange {
 public:
  Exchange(Communicator& communicator, DeviceStream stream, CollectiveKind kind, int64_t elements,
           bool in_place, int32_t root)
      : communicator_(communicator),
        group_(communicator.group()),
        stream_(stream),
        member_((communicator.rank().value - group_.first) / group_.stride),
        part_(elements / group_.count),
        in_place_(in_place),
        root_(root) {
    call_.kind = kind;
    call_.dtype = sizeof(T) == 4 ? Dtype::kFloat32 : Dtype::kFloat64;
    call_.elements = elements;
    call_.root = group_.member(root);
  }

  absl::Status Run() {
    SHARDPROOF_RETURN_IF_ERROR(Prepare());
    SHARDPROOF_ASSIGN_OR_RETURN(const CollectiveHandle handle, communicator_.Start(call_));
    SHARDPROOF_RETURN_IF_ERROR(communicator_.Wait(handle, kPatience));
    std::vector<T> received(receives());
    if (!received.empty()) {
      SHARDPROOF_DEVICE_OK(cudaMemcpy(received.data(), call_.recv, received.size() * sizeof(T),
                                      cudaMemcpyDeviceToHost));
    }
    for (int64_t i = 0; i < receives(); ++i) {
      const T expected = Expected(i);
      if (std::memcmp(&received[i], &expected, sizeof(T)) == 0) continue;
      return absl::InternalError(absl::StrCat(
          "rank ", communicator_.rank().value, ", ", DescribeCall(call_),
          in_place_ ? " in place" : "", ": element ", i, " is ", received[i], ", not ", expected));
    }
    return absl::OkStatus();
  }

 private:
  bool gathers() const { return call_.kind == CollectiveKind::kAllGather; }
  bool scatters() const { return call_.kind == CollectiveKind::kReduceScatter; }
  int64_t sends() const { return gathers() ? part_ : call_.elements; }
  int64_t receives() const {
    if (call_.kind == CollectiveKind::kBarrier) return 0;
    return scatters() ? part_ : call_.elements;
  }

  // What `member` sends at i.
  T Value(int32_t member, int64_t i) const {
    if (communicator_.adds_in_rank_order()) {
      return T{1} / static_cast<T>(3 + member + 7 * (i % 1000)) * (member % 2 == 0 ? 1 : -1);
    }
    return static_cast<T>((member + 1) * (member + 1) * 2000 + i % 1000);
  }

  T SumAt(int64_t i) const {
    T sum = Value(0, i);
    for (int32_t member = 1; member < group_.count; ++member) sum += Value(member, i);
    return sum;
  }

  T Expected(int64_t i) const {
    if (gathers()) return Value(static_cast<int32_t>(i / part_), i % part_);
    if (scatters()) return SumAt(member_ * part_ + i);
    return call_.kind == CollectiveKind::kBroadcast ? Value(root_, i) : SumAt(i);
  }

  absl::Status Prepare() {
    if (call_.kind == CollectiveKind::kBarrier) return absl::OkStatus();
    SHARDPROOF_RETURN_IF_ERROR(first_.Allocate(call_.elements * sizeof(T)));
    SHARDPROOF_RETURN_IF_ERROR(second_.Allocate(call_.elements * sizeof(T)));
    T* const send = static_cast<T*>(first_.data) + (in_place_ && gathers() ? member_ * part_ : 0);
    T* const recv = static_cast<T*>(in_place_ ? first_.data : second_.data) +
                    (in_place_ && scatters() ? member_ * part_ : 0);
    std::vector<T> values(sends());
    for (int64_t i = 0; i < sends(); ++i) values[i] = Value(member_, i);
    SHARDPROOF_DEVICE_OK(cudaMemcpyAsync(send, values.data(), values.size() * sizeof(T),
                                         cudaMemcpyHostToDevice, stream_));
    // Only the root's send is read.
    const bool reads = call_.kind != CollectiveKind::kBroadcast || member_ == root_ || in_place_;
    call_.send = reads ? send : nullptr;
    call_.recv = recv;
    return absl::OkStatus();
  }

  Communicator& communicator_;
  const Group group_;
  const DeviceStream stream_;
  const int32_t member_;
  const int64_t part_;
  const bool in_place_;
  const int32_t root_;
  CollectiveCall call_;
  Bytes first_, second_;
};

template <typename T>
absl::Status CheckKinds(Communicator& communicator, DeviceStream stream, int64_t part,
                        bool in_place) {
  const int32_t members = communicator.group().count;
  const auto run = [&](CollectiveKind kind, int64_t elements, int32_t root) {
    return Exchange<T>(communicator, stream, kind, elements, in_place, root).Run();
  };
  // The kinds that cut nothing also get counts that the members do not divide.
  const int64_t whole = part == 0 ? 0 : part * members - (members > 1 ? 1 : 0);
  SHARDPROOF_RETURN_IF_ERROR(run(CollectiveKind::kAllReduce, whole, 0));
  SHARDPROOF_RETURN_IF_ERROR(run(CollectiveKind::kAllGather, part * members, 0));
  SHARDPROOF_RETURN_IF_ERROR(run(CollectiveKind::kReduceScatter, part * members, 0));
  for (int32_t root = 0; root < members; ++root) {
    SHARDPROOF_RETURN_IF_ERROR(run(CollectiveKind::kBroadcast, whole, root));
  }
  return run(CollectiveKind::kBarrier, 0, 0);
}

}  // namespace

StreamForTest::StreamForTest() {
  ExpectOk(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}
StreamForTest::~StreamForTest() { ExpectOk(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }

FloatsForTest::FloatsForTest(const std::vector<float>& values) : count_(values.size()) {
  const size_t bytes = values.size() * sizeof(float);
  ExpectOk(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), "cudaMalloc");
  ExpectOk(cudaMemcpy(data_, values.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  // A copy may return before its end, and streams that do not block do not wait for it.
  ExpectOk(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

FloatsForTest::~FloatsForTest() { ExpectOk(cudaFree(data_), "cudaFree"); }

std::vector<float> FloatsForTest::Download() const {
  std::vector<float> values(count_);
  ExpectOk(cudaMemcpy(values.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost),
           "cudaMemcpy");
  return values;
}

CollectiveCall AllReduceForTest(int64_t elements, float* in_place, int32_t label) {
  CollectiveCall call;
  call.kind = CollectiveKind::kAllReduce;
  call.elements = elements;
  call.send = in_place;
  call.recv = in_place;
  call.label = label;
  return call;
}

std::vector<absl::Status> OnEveryRank(DeviceWorld& world, const std::vector<Rank>& ranks,
                                      const std::function<absl::Status(Rank, DeviceStream)>& body) {
  std::vector<absl::Status> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = DeviceStatus(cudaSetDevice(world.device(ranks[i])), "cudaSetDevice");
      if (!results[i].ok()) return;
      const StreamForTest stream;
      results[i] = body(ranks[i], stream.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

absl::Status CheckEveryCollective(Communicator& communicator, DeviceStream stream) {
  for (const int64_t part : {0, 1, 7, 1000, 70001}) {
    for (const bool in_place : {false, true}) {
      SHARDPROOF_RETURN_IF_ERROR(CheckKinds<float>(communicator, stream, part, in_place));
      SHARDPROOF_RETURN_IF_ERROR(CheckKinds<double>(communicator, stream, part, in_place));
    }
  }
  return absl::OkStatus();
}

}  // namespace shardproof
