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
constexpr uint32_t kVersion = 2;
constexpr uint64_t kMagic = 0x73707374'65700000 | kVersion;
// The head begins with it. The tables follow, filled up with zeros to whole words.
struct Header {
  uint64_t magic = kMagic;
  uint64_t table_bytes = 0;
  uint64_t table_checksum = 0;
  uint64_t value_bytes = 0;
  uint64_t value_checksum = 0;
};
constexpr size_t kHeaderBytes = sizeof(Header);
constexpr size_t kWordBytes = sizeof(uint64_t);
constexpr uint64_t kSeed = 0x9e3779b97f4a7c15ULL;

// The checksum of `bytes` behind what has `sum`. Every step of it can be undone, so a change of one
// word always shows. Four sums take the words in turn: one would wait for its multiplication at
// every word, several times as long as the word takes to come from memory.
uint64_t Checksum(absl::string_view bytes, uint64_t sum) {
  const auto mix = [](uint64_t into, uint64_t word) {
    into = (into ^ word) * 0xd6e8feb86659fd93ULL;
    return into ^ into >> 32;
  };
  constexpr size_t kLanes = 4;
  uint64_t lanes[kLanes] = {mix(sum, bytes.size()), 1, 2, 3};
  uint64_t words[kLanes];
  size_t at = 0;
  for (; at + sizeof(words) <= bytes.size(); at += sizeof(words)) {
    std::memcpy(words, bytes.data() + at, sizeof(words));
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  std::memset(words, 0, sizeof(words));
  if (at < bytes.size()) std::memcpy(words, bytes.data() + at, bytes.size() - at);
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = mix(lanes[i], words[i]);
  for (size_t i = 1; i < kLanes; ++i) lanes[0] = mix(lanes[0], lanes[i]);
  return lanes[0];
}

// Writes what it is shown. The values of segments stay where they are.
class Packer {
 public:
  explicit Packer(PackedStep& packed) : packed_(packed) {}

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
    if (!shown) return;
    packed_.values.emplace_back(reinterpret_cast<const char*>(segment.values),
                                static_cast<size_t>(segment.range.count) * sizeof(float));
  }

 private:
  void Append(const void* from, size_t bytes) {
    packed_.head.append(static_cast<const char*>(from), bytes);
  }

  PackedStep& packed_;
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

  // Lets the segments shown so far point to their values in `values`: nothing else is there.
  void TakeValues(absl::string_view values, uint64_t checksum, std::vector<RankState>& states) {
    if (rest_.size() >= kWordBytes) Fail("has longer tables than it names items");
    uint64_t total = 0;
    for (const int64_t count : shown_) {
      total += static_cast<uint64_t>(count);
      if (total > values.size()) return Fail("names more values than it has bytes");
    }
    if (total * sizeof(float) != values.size()) Fail("has another length than its values");
    if (!ok()) return;
    uint64_t sum = kSeed;
    for (RankState& state : states) {
      for (StateSegment& segment : state.segments) {
        if (segment.values == nullptr) continue;
        const size_t bytes = static_cast<size_t>(segment.range.count) * sizeof(float);
        segment.values = reinterpret_cast<const float*>(values.data());
        sum = Checksum(values.substr(0, bytes), sum);
        values.remove_prefix(bytes);
      }
    }
    if (sum != checksum) Fail("has values that have changed on their way");
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

std::vector<absl::string_view> PackedStep::Pieces() const {
  std::vector<absl::string_view> pieces = {head};
  pieces.insert(pieces.end(), values.begin(), values.end());
  return pieces;
}

PackedStep PackStep(const StepObservation& step) {
  PackedStep packed;
  packed.head.resize(kHeaderBytes);
  Packer packer(packed);
  Visit(packer, step);
  packed.head.resize((packed.head.size() + kWordBytes - 1) / kWordBytes * kWordBytes);
  const absl::string_view tables = absl::string_view(packed.head).substr(kHeaderBytes);
  Header header = {.table_bytes = tables.size(),
                   .table_checksum = Checksum(tables, kSeed),
                   .value_checksum = kSeed};
  for (const absl::string_view values : packed.values) {
    header.value_bytes += values.size();
    header.value_checksum = Checksum(values, header.value_checksum);
  }
  std::memcpy(packed.head.data(), &header, kHeaderBytes);
  return packed;
}

absl::StatusOr<StepObservation> UnpackStep(absl::string_view bytes) {
  if (bytes.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packed step of ", bytes.size(), " bytes: the least is ", kHeaderBytes));
  }
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float) != 0) {
    return absl::InvalidArgumentError(
        "a packed step at an address that is no multiple of 4: its values cannot be read there");
  }
  Header header;
  std::memcpy(&header, bytes.data(), kHeaderBytes);
  const absl::string_view body = bytes.substr(kHeaderBytes);
  if (header.magic != kMagic) {
    return absl::InvalidArgumentError(
        "not a packed step of this build: all processes of a job run the same program");
  }
  if (header.table_bytes > body.size() || header.table_bytes % kWordBytes != 0 ||
      header.value_bytes != body.size() - header.table_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packed step of ", body.size(), " bytes that should have ",
                     header.table_bytes, " of tables and ", header.value_bytes, " of values"));
  }
  const absl::string_view tables = body.substr(0, header.table_bytes);
  if (header.table_checksum != Checksum(tables, kSeed)) {
    return absl::InvalidArgumentError("a packed step whose tables have changed on their way");
  }
  StepObservation step;
  Unpacker unpacker(tables);
  Visit(unpacker, step);
  unpacker.TakeValues(body.substr(tables.size()), header.value_checksum, step.states);
  if (!unpacker.ok()) return unpacker.status();
  for (const RankEvents& rank : step.events) {
    if (absl::Status inside = CheckIndices(rank); !inside.ok()) return inside;
  }
  return step;
}

}  // namespace shardproof
