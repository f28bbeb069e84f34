#include "invariants/observation/observation_wire.h"

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace shardproof {
namespace {

// Changes with every change of what Visit says below.
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMagic = 0x73707374'65700000 | kVersion;
constexpr size_t kHeaderBytes = 3 * sizeof(uint64_t);  // magic, bytes of the body, its checksum

// Every step of it can be undone, so a change of one word always shows.
uint64_t Checksum(absl::string_view bytes) {
  uint64_t sum = 0x9e3779b97f4a7c15ULL ^ bytes.size();
  const auto mix = [&sum](uint64_t word) {
    sum = (sum ^ word) * 0xd6e8feb86659fd93ULL;
    sum ^= sum >> 32;
  };
  size_t at = 0;
  for (; at + sizeof(uint64_t) <= bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    mix(word);
  }
  uint64_t last = 0;
  if (at < bytes.size()) std::memcpy(&last, bytes.data() + at, bytes.size() - at);
  mix(last);
  return sum;
}

// Writes what it is shown. The values of segments go behind everything else.
class Packer {
 public:
  explicit Packer(std::string& bytes) : bytes_(bytes) {}

  template <typename T>
  void Plain(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    Append(&value, sizeof(value));
  }
  template <typename E>
  void Enum(const E& value) {
    Plain(static_cast<uint8_t>(value));
  }
  template <typename T, typename Fn>
  void Vector(const std::vector<T>& items, Fn visit) {
    Plain(static_cast<uint64_t>(items.size()));
    for (const T& item : items) visit(item);
  }
  void Values(const StateSegment& segment) {
    const bool shown = segment.values != nullptr;
    Plain(static_cast<uint8_t>(shown));
    if (shown) shown_.push_back(&segment);
  }

  void AppendValues() {
    for (const StateSegment* segment : shown_) {
      Append(segment->values, static_cast<size_t>(segment->range.count) * sizeof(float));
    }
  }

 private:
  void Append(const void* from, size_t bytes) {
    bytes_.append(static_cast<const char*>(from), bytes);
  }

  std::string& bytes_;
  std::vector<const StateSegment*> shown_;
};

// Fills what it is shown. After the first thing that is wrong it does nothing more.
class Unpacker {
 public:
  explicit Unpacker(absl::string_view bytes) : rest_(bytes) {}

  template <typename T>
  void Plain(T& value) {
    if (rest_.size() < sizeof(T)) return Fail("ends in the middle of a field");
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
  }
  void Plain(bool& value) {
    uint8_t byte = 0;
    Plain(byte);
    if (byte > 1) Fail("holds a flag that is neither set nor unset");
    value = byte == 1;
  }
  template <typename E>
  void Enum(E& value) {
    uint8_t byte = 0;
    Plain(byte);
    value = static_cast<E>(byte);
    if (Name(value) != "?") return;
    value = E();
    Fail("holds a word that is unknown");
  }
  template <typename T, typename Fn>
  void Vector(std::vector<T>& items, Fn visit) {
    uint64_t count = 0;
    Plain(count);
    // No item takes less than a byte.
    if (count > rest_.size()) return Fail("names more items than it has bytes");
    items.clear();
    for (uint64_t i = 0; i < count && ok(); ++i) {
      items.emplace_back();
      visit(items.back());
    }
  }
  void Values(StateSegment& segment) {
    bool shown = false;
    Plain(shown);
    if (segment.range.count < 0) return Fail("holds a segment of a negative number of elements");
    if (shown) shown_.push_back(segment.range.count);
    // A mark until the values are there.
    segment.values = shown ? &kMark : nullptr;
  }

  // The values that follow everything else, to which the segments shown so far point then.
  void TakeValues(std::vector<RankState>& states, std::vector<float>& values) {
    uint64_t total = 0;
    for (const int64_t count : shown_) {
      total += static_cast<uint64_t>(count);
      if (total > rest_.size()) return Fail("names more values than it has bytes");
    }
    if (!ok()) return;
    if (total * sizeof(float) != rest_.size()) return Fail("has another length than its values");
    values.resize(total);
    if (total > 0) std::memcpy(values.data(), rest_.data(), rest_.size());
    const float* next = values.data();
    for (RankState& state : states) {
      for (StateSegment& segment : state.segments) {
        if (segment.values == nullptr) continue;
        segment.values = next;
        next += segment.range.count;
      }
    }
  }

  void Fail(absl::string_view what) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat("a packed step ", what));
    rest_ = {};
  }
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

 private:
  static constexpr float kMark = 0;
  absl::string_view rest_;
  std::vector<int64_t> shown_;  // elements, by segment with values
  absl::Status status_;
};

// One description of the bytes for both directions: `T` is const when packing.
template <typename T, typename Plain>
concept Is = std::is_same_v<std::remove_const_t<T>, Plain>;

template <typename A, Is<Group> T>
void Visit(A& a, T& group) {
  a.Plain(group.first);
  a.Plain(group.stride);
  a.Plain(group.count);
}

template <typename A, Is<ElementRange> T>
void Visit(A& a, T& range) {
  a.Plain(range.first);
  a.Plain(range.count);
}

template <typename A, Is<BufferInfo> T>
void Visit(A& a, T& buffer) {
  a.Enum(buffer.role);
  a.Enum(buffer.dtype);
  a.Enum(buffer.tier);
  a.Plain(buffer.elements);
  a.Plain(buffer.unit);
  a.Plain(buffer.bucket);
}

template <typename A, Is<Access> T>
void Visit(A& a, T& access) {
  a.Plain(access.buffer);
  a.Enum(access.kind);
  Visit(a, access.range);
  a.Plain(access.version);
}

template <typename A, Is<Event> T>
void Visit(A& a, T& event) {
  a.Enum(event.kind);
  a.Enum(event.phase);
  a.Enum(event.stream);
  a.Enum(event.collective);
  a.Enum(event.purpose);
  a.Enum(event.dtype);
  a.Plain(event.completed);
  Visit(a, event.group);
  a.Plain(event.root);
  a.Plain(event.elements);
  a.Plain(event.micro_batch);
  a.Plain(event.unit);
  a.Plain(event.bucket);
  a.Plain(event.tensor);
  a.Plain(event.stage);
  a.Plain(event.stage_count);
  a.Plain(event.first_wait);
  a.Plain(event.wait_count);
  a.Plain(event.first_access);
  a.Plain(event.access_count);
}

template <typename A, Is<RankEvents> T>
void Visit(A& a, T& rank) {
  const auto visit = [&a](auto& item) { Visit(a, item); };
  const auto plain = [&a](auto& item) { a.Plain(item); };
  Visit(a, rank.ranks);
  a.Vector(rank.buffers, visit);
  a.Vector(rank.live_before, plain);
  a.Vector(rank.events, visit);
  a.Vector(rank.waits, plain);
  a.Vector(rank.accesses, visit);
}

template <typename A, Is<StateSegment> T>
void Visit(A& a, T& segment) {
  a.Enum(segment.state);
  a.Plain(segment.tensor);
  Visit(a, segment.range);
  a.Plain(segment.buffer);
  a.Plain(segment.buffer_offset);
  a.Values(segment);
}

template <typename A, Is<TensorStep> T>
void Visit(A& a, T& step) {
  a.Plain(step.tensor);
  a.Plain(step.updates);
}

template <typename A, Is<RankState> T>
void Visit(A& a, T& state) {
  const auto visit = [&a](auto& item) { Visit(a, item); };
  Visit(a, state.ranks);
  a.Plain(state.bytes.parameter);
  a.Plain(state.bytes.gradient);
  a.Plain(state.bytes.optimizer);
  a.Plain(state.bytes.padding);
  a.Plain(state.bytes.scalar);
  a.Vector(state.segments, visit);
  a.Vector(state.steps, visit);
}

template <typename A, Is<ClipObservation> T>
void Visit(A& a, T& clip) {
  a.Plain(clip.norm);
  a.Plain(clip.coefficient);
}

template <typename A, Is<DeviceWitness> T>
void Visit(A& a, T& device) {
  a.Plain(device.rank);
  a.Vector(device.collective_kernels, [&a](auto& count) { a.Plain(count); });
  a.Plain(device.steady_bytes);
  a.Plain(device.peak_bytes);
}

template <typename A, Is<StepObservation> T>
void Visit(A& a, T& step) {
  const auto visit = [&a](auto& item) { Visit(a, item); };
  a.Plain(step.step);
  a.Vector(step.events, visit);
  a.Vector(step.states, visit);
  a.Vector(step.losses, [&a](auto& loss) { a.Plain(loss); });
  a.Plain(step.any_order);
  a.Vector(step.clips, visit);
  a.Vector(step.devices, visit);
}

bool Within(uint64_t first, uint64_t count, size_t size) { return first + count <= size; }

// Who reads an observation follows its indices without looking.
absl::Status CheckIndices(const RankEvents& rank) {
  const auto is_buffer = [&](int32_t buffer) {
    return buffer >= 0 && static_cast<size_t>(buffer) < rank.buffers.size();
  };
  bool inside = true;
  for (const int32_t buffer : rank.live_before) inside = inside && is_buffer(buffer);
  for (const Access& access : rank.accesses) inside = inside && is_buffer(access.buffer);
  for (const Event& event : rank.events) {
    inside = inside && Within(event.first_wait, event.wait_count, rank.waits.size()) &&
             Within(event.first_access, event.access_count, rank.accesses.size());
  }
  for (const int32_t wait : rank.waits) {
    inside = inside && wait >= 0 && static_cast<size_t>(wait) < rank.events.size();
  }
  if (inside) return absl::OkStatus();
  return absl::InvalidArgumentError("a packed step has an index outside of its table");
}

}  // namespace

std::string PackStep(const StepObservation& step) {
  std::string bytes(kHeaderBytes, '\0');
  Packer packer(bytes);
  Visit(packer, step);
  packer.AppendValues();
  const absl::string_view body = absl::string_view(bytes).substr(kHeaderBytes);
  const uint64_t header[] = {kMagic, body.size(), Checksum(body)};
  std::memcpy(bytes.data(), header, kHeaderBytes);
  return bytes;
}

absl::StatusOr<UnpackedStep> UnpackStep(absl::string_view bytes) {
  if (bytes.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packed step of ", bytes.size(), " bytes: the least is ", kHeaderBytes));
  }
  uint64_t header[3];
  std::memcpy(header, bytes.data(), kHeaderBytes);
  const absl::string_view body = bytes.substr(kHeaderBytes);
  if (header[0] != kMagic) {
    return absl::InvalidArgumentError(
        "not a packed step of this build: all processes of a job run the same program");
  }
  if (header[1] != body.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packed step of ", body.size(), " bytes that should have ", header[1]));
  }
  if (header[2] != Checksum(body)) {
    return absl::InvalidArgumentError("a packed step whose bytes have changed on their way");
  }
  UnpackedStep step;
  Unpacker unpacker(body);
  Visit(unpacker, step.observation);
  unpacker.TakeValues(step.observation.states, step.values);
  if (!unpacker.ok()) return unpacker.status();
  for (const RankEvents& rank : step.observation.events) {
    if (absl::Status inside = CheckIndices(rank); !inside.ok()) return inside;
  }
  return step;
}

}  // namespace shardproof
