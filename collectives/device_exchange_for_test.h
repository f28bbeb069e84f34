// Collectives on real device memory, checked against plain loops: for tests of DeviceWorlds. A CUDA
// call that fails where nothing is returned fails the test.
#ifndef COLLECTIVES_DEVICE_EXCHANGE_FOR_TEST_H_
#define COLLECTIVES_DEVICE_EXCHANGE_FOR_TEST_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/device_world.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// A stream of the current device, for a test's lifetime.
class StreamForTest {
 public:
  StreamForTest();
  ~StreamForTest();
  StreamForTest(const StreamForTest&) = delete;
  StreamForTest& operator=(const StreamForTest&) = delete;
  DeviceStream get() const { return stream_; }

 private:
  DeviceStream stream_ = nullptr;
};

// float32 values on the current device, for any of its streams.
class FloatsForTest {
 public:
  explicit FloatsForTest(const std::vector<float>& values);
  ~FloatsForTest();
  FloatsForTest(const FloatsForTest&) = delete;
  FloatsForTest& operator=(const FloatsForTest&) = delete;
  float* data() const { return data_; }
  // What is there now: wait for what writes it.
  std::vector<float> Download() const;

 private:
  size_t count_;
  float* data_ = nullptr;
};

CollectiveCall AllReduceForTest(int64_t elements, float* in_place, int32_t label = -1);

// Runs `body` for each rank on a thread of its own, with the rank's device current. By the order
// of `ranks`: what it returned.
std::vector<absl::Status> OnEveryRank(DeviceWorld& world, const std::vector<Rank>& ranks,
                                      const std::function<absl::Status(Rank, DeviceStream)>& body);

// Starts every kind of collective of `communicator`, with 0, 1, odd and many elements a part, in
// place and not, every root, float32 and float64, and waits for each. Internal that names the
// collective and the first element that is not what plain loops say. Where sums are added in rank
// order their bits are compared on values that round; elsewhere values are integers whose sums are
// exact. All members call it.
absl::Status CheckEveryCollective(Communicator& communicator, DeviceStream stream);

}  // namespace shardproof

#endif  // COLLECTIVES_DEVICE_EXCHANGE_FOR_TEST_H_
