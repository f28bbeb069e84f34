#include "collectives/launch/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

constexpr absl::string_view kMagic("SPJ\x01", 4);

// The largest bodies: a handshake's, any other's, and a gather's, beyond which a length is noise.
constexpr uint64_t kMaxHandshakeBody = 2 * kMaxSecretBytes;
constexpr uint64_t kMaxControlBody = kMaxValueBytes + 4 * kMaxKeyBytes;
constexpr uint64_t kMaxGatherBody = uint64_t{1} << 40;

// What one call of the system sends: a header with its body, or many small pieces.
constexpr size_t kPiecesPerCall = 64;
// The body of a gather takes memory that was given for it from here on.
constexpr uint64_t kLongBody = 1 << 20;
// A long body's memory is touched in steps, as it arrives.
constexpr uint64_t kBodyStep = 256 << 10;
constexpr size_t kReceivedPerTurn = 4 << 20;

void AppendUnsigned(uint64_t value, size_t bytes, std::string& to) {
  for (size_t i = 0; i < bytes; ++i) to.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

uint64_t UnsignedAt(absl::string_view from, size_t first, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= uint64_t{static_cast<unsigned char>(from[first + i])} << (8 * i);
  }
  return value;
}

absl::Status Ended(int error) {
  return absl::UnavailableError(
      absl::StrCat("the connection ended: ", std::generic_category().message(error)));
}

}  // namespace

BodyWriter& BodyWriter::Number(uint32_t value) {
  AppendUnsigned(value, 4, body_);
  return *this;
}

BodyWriter& BodyWriter::Number64(uint64_t value) {
  AppendUnsigned(value, 8, body_);
  return *this;
}

BodyWriter& BodyWriter::Text(absl::string_view value) {
  AppendUnsigned(value.size(), 8, body_);
  body_.append(value.data(), value.size());
  return *this;
}

bool BodyReader::Unsigned(size_t bytes, uint64_t& value) {
  value = 0;
  if (rest_.size() < bytes) return false;
  value = UnsignedAt(rest_, 0, bytes);
  rest_.remove_prefix(bytes);
  return true;
}

bool BodyReader::Number(uint32_t& value) {
  uint64_t wide = 0;
  const bool read = Unsigned(4, wide);
  value = static_cast<uint32_t>(wide);
  return read;
}

bool BodyReader::Number64(uint64_t& value) { return Unsigned(8, value); }

bool BodyReader::Text(absl::string_view& value) {
  value = absl::string_view();
  uint64_t size = 0;
  if (!Unsigned(8, size) || rest_.size() < size) return false;
  value = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return true;
}

void Connection::Append(std::string owned, bool control) {
  if (owned.empty()) return;
  if (control) queued_control_bytes_ += owned.size();
  queue_.push_back({std::move(owned), {}, control});
  queue_.back().bytes = queue_.back().owned;  // Elements of a deque stay where they are.
}

void Connection::Queue(Message message, absl::Span<const absl::string_view> pieces) {
  uint64_t length = message.body.size();
  for (const absl::string_view piece : pieces) length += piece.size();
  std::string head(kMagic);
  AppendUnsigned(static_cast<uint32_t>(message.type), 4, head);
  AppendUnsigned(message.id, 8, head);
  AppendUnsigned(length, 8, head);
  const bool control = message.type != MessageType::kGather;
  Append(std::move(head), control);
  Append(std::move(message.body), control);
  for (const absl::string_view piece : pieces) {
    if (!piece.empty()) queue_.push_back({"", piece, control});
  }
}

void Connection::OwnQueued() {
  for (Queued& queued : queue_) {
    if (!queued.owned.empty()) continue;
    queued.owned = std::string(queued.bytes);
    queued.bytes = queued.owned;
  }
}

void Connection::DropSent(size_t sent) {
  sent_of_first_ += sent;
  while (!queue_.empty() && sent_of_first_ >= queue_.front().bytes.size()) {
    const Queued& first = queue_.front();
    sent_of_first_ -= first.bytes.size();
    if (first.control) queued_control_bytes_ -= first.bytes.size();
    queue_.pop_front();
  }
}

absl::Status Connection::Send() {
  while (!queue_.empty()) {
    iovec parts[kPiecesPerCall];
    const size_t count = std::min(queue_.size(), kPiecesPerCall);
    for (size_t i = 0; i < count; ++i) {
      const absl::string_view rest = queue_[i].bytes.substr(i == 0 ? sent_of_first_ : 0);
      parts[i] = {const_cast<char*>(rest.data()), rest.size()};  // iovec is for reading as well.
    }
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::OkStatus();
      return Ended(errno);
    }
    DropSent(static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Connection::Read(char* to, size_t size) {
  while (true) {
    const ssize_t received = recv(socket_.get(), to, size, 0);
    if (received > 0) return static_cast<size_t>(received);
    if (received == 0) return absl::UnavailableError("the connection ended");
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    return Ended(errno);
  }
}

absl::Status Connection::BeginBody() {
  const absl::string_view header(header_, kHeaderBytes);
  const uint64_t type = UnsignedAt(header, 4, 4);
  length_ = UnsignedAt(header, 16, 8);
  const bool gather = type == static_cast<uint32_t>(MessageType::kGather);
  const uint64_t limit = !trusted_ ? kMaxHandshakeBody : gather ? kMaxGatherBody : kMaxControlBody;
  if (header.substr(0, 4) != kMagic || type < static_cast<uint32_t>(MessageType::kHello) ||
      type > static_cast<uint32_t>(MessageType::kReply) || length_ > limit) {
    return absl::DataLossError("what arrived is no message of a shardproof job, version 1");
  }
  arriving_ = Message{static_cast<MessageType>(type), UnsignedAt(header, 8, 8), ""};
  if (gather && length_ >= kLongBody) arriving_.body = std::exchange(spare_, {});
  // Memory that is there already is not filled with zeros.
  if (arriving_.body.size() > length_) arriving_.body.resize(length_);
  arriving_.body.reserve(length_);
  filled_ = 0;
  return absl::OkStatus();
}

absl::Status Connection::Receive(std::vector<Message>& messages) {
  for (size_t received = 0; received < kReceivedPerTurn;) {
    const bool in_header = header_filled_ < kHeaderBytes;
    char* to = header_ + header_filled_;
    size_t size = kHeaderBytes - header_filled_;
    if (!in_header) {
      if (filled_ == arriving_.body.size()) {
        arriving_.body.resize(std::min(length_, filled_ + kBodyStep));
      }
      to = arriving_.body.data() + filled_;
      size = arriving_.body.size() - filled_;
    }
    SHARDPROOF_ASSIGN_OR_RETURN(const size_t count, Read(to, size));
    if (count == 0) return absl::OkStatus();
    received += count;
    (in_header ? header_filled_ : filled_) += count;
    if (in_header && header_filled_ == kHeaderBytes) SHARDPROOF_RETURN_IF_ERROR(BeginBody());
    if (!BodyIsComplete()) continue;
    messages.push_back(std::move(arriving_));
    header_filled_ = 0;
  }
  return absl::OkStatus();
}

}  // namespace shardproof
