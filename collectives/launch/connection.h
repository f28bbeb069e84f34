// Connection: messages over one nonblocking TCP socket between a rank and rank 0.
//
// A message on the wire is a header of 24 bytes, all numbers little endian, and a body:
//
//   bytes  0..3   "SPJ" and the version of this format, 1
//          4..7   type
//          8..15  id: a request's, and its reply's
//         16..23  bytes of the body
//
//   type       from   body                        meaning
//   kHello     rank   rank, world size, secret    first message of a connection
//   kWelcome   0      -                           the rank is in; others may be missing
//   kRefuse    0      code, words                 it is not, or the job does not start
//   kStart     0      -                           all ranks are in
//   kSet       rank   key, value                  no reply
//   kGet       rank   key                         reply: value, or the code NotFound
//   kAwait     rank   key, who, nanoseconds       reply: value or an error
//   kGather    rank   the bytes given             the n-th of a connection is of the n-th gather
//   kGoneRanks rank   -                           reply: their numbers
//   kReply     0      code, words or value
//
// In a body a number has 4 bytes, nanoseconds 8, a text its length in 8 bytes and its bytes. The
// last text of kReply and kRefuse too. An absl::StatusCode is a number.
#ifndef COLLECTIVES_LAUNCH_CONNECTION_H_
#define COLLECTIVES_LAUNCH_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/launch/sockets.h"

namespace shardproof {

enum class MessageType : uint32_t {
  kHello = 1,
  kWelcome,
  kRefuse,
  kStart,
  kSet,
  kGet,
  kAwait,
  kGather,
  kGoneRanks,
  kReply,
};

struct Message {
  MessageType type = MessageType::kHello;
  uint64_t id = 0;
  std::string body;
};

// Limits of texts in bytes, so that no message but kGather asks for much memory.
inline constexpr size_t kMaxSecretBytes = 4096;
inline constexpr size_t kMaxKeyBytes = 65536;
inline constexpr size_t kMaxValueBytes = 16 << 20;

// Appends to a body, and takes from one in the same order.
class BodyWriter {
 public:
  BodyWriter& Number(uint32_t value);
  BodyWriter& Number64(uint64_t value);
  BodyWriter& Text(absl::string_view value);
  std::string Take() { return std::move(body_); }

 private:
  std::string body_;
};

class BodyReader {
 public:
  explicit BodyReader(absl::string_view body) : rest_(body) {}
  // False if the body is too short; the value is then 0 or empty. A text points into the body.
  bool Number(uint32_t& value);
  bool Number64(uint64_t& value);
  bool Text(absl::string_view& value);
  bool AtEnd() const { return rest_.empty(); }

 private:
  bool Unsigned(size_t bytes, uint64_t& value);

  absl::string_view rest_;
};

// Neither sending nor receiving waits. One thread may send while another receives.
class Connection {
 public:
  explicit Connection(FileDescriptor socket) : socket_(std::move(socket)) {}
  int descriptor() const { return socket_.get(); }

  // Until then only messages that fit a handshake are taken.
  void TrustPeer() { trusted_ = true; }

  // Puts a message behind those that wait. Bodies are moved, not copied. `pieces` follow the body
  // as a part of it; they are not copied either, and stay valid until has_queued() is false or
  // OwnQueued() was called.
  void Queue(Message message, absl::Span<const absl::string_view> pieces = {});
  // Copies what is left of pieces that wait.
  void OwnQueued();
  // Sends what the socket takes now. Unavailable if the connection has ended.
  absl::Status Send();
  bool has_queued() const { return !queue_.empty(); }
  // Bytes that wait, those of kGather apart: they are bounded by what ranks give.
  size_t queued_control_bytes() const { return queued_control_bytes_; }

  // Memory for the body of the next kGather of a megabyte or more, instead of fresh memory.
  void ReuseForBody(std::string memory) { spare_ = std::move(memory); }
  // Appends the messages that have arrived in full, and keeps the begun one; returns after a few
  // megabytes so that other connections have their turn. Unavailable if the connection has ended,
  // DataLoss if what arrives is no message of this format or exceeds its limits. The messages
  // before an error are appended as well.
  absl::Status Receive(std::vector<Message>& messages);

 private:
  static constexpr size_t kHeaderBytes = 24;

  struct Queued {
    std::string owned;  // or empty: the bytes are a piece's
    absl::string_view bytes;
    bool control = true;
  };

  void Append(std::string owned, bool control);
  void DropSent(size_t sent);

  // Reads up to `size` bytes: how many, 0 if none are there yet.
  absl::StatusOr<size_t> Read(char* to, size_t size);
  absl::Status BeginBody();
  bool BodyIsComplete() const { return header_filled_ == kHeaderBytes && filled_ == length_; }

  FileDescriptor socket_;
  bool trusted_ = false;

  std::deque<Queued> queue_;
  size_t sent_of_first_ = 0;
  size_t queued_control_bytes_ = 0;

  // The message that is arriving: its header, then `filled_` of `length_` bytes of its body.
  char header_[kHeaderBytes] = {};
  size_t header_filled_ = 0;
  Message arriving_;
  std::string spare_;
  uint64_t length_ = 0;
  uint64_t filled_ = 0;
};

}  // namespace shardproof

#endif  // COLLECTIVES_LAUNCH_CONNECTION_H_
