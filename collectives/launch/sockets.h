// TCP sockets as a job needs them: nonblocking, closed on exec, without SIGPIPE, errors as Status.
#ifndef COLLECTIVES_LAUNCH_SOCKETS_H_
#define COLLECTIVES_LAUNCH_SOCKETS_H_

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/launch/deadline.h"

namespace shardproof {

// Owns a file descriptor; -1 is none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  // "127.0.0.1:29501", "[::1]:29501".
  std::string Text() const;
};

// All addresses of `host` in the resolver's order, IPv4 and IPv6. InvalidArgument if the name is
// unknown, Unavailable if the resolver fails for now. The resolver's own limits bound the wait.
absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view host, int32_t port);

// Listens on `host`, empty for all interfaces, IPv4 and IPv6 if the machine has both. Port 0: any.
//   AlreadyExists       another program holds the port
//   FailedPrecondition  the host is no address of this machine
//   PermissionDenied, Unavailable, and the errors of Resolve
absl::StatusOr<FileDescriptor> Listen(absl::string_view host, int32_t port);
absl::StatusOr<int32_t> PortOf(const FileDescriptor& listener);

// The next connection, if one waits. Errors are of the machine (out of descriptors), not of the
// connection.
absl::StatusOr<std::optional<FileDescriptor>> Accept(const FileDescriptor& listener);

// Unavailable if nobody listens there, DeadlineExceeded if nothing answers.
absl::StatusOr<FileDescriptor> Connect(const SocketAddress& address, Deadline deadline);

// A name by which this machine's programs reach an all-interfaces listener on it, and as a rule
// other machines' too: its host name, or 127.0.0.1 if that does not resolve.
std::string NameOfThisMachine();

// Wakes a thread out of poll(): readable from Wake to Drain.
class WakeEvent {
 public:
  static absl::StatusOr<WakeEvent> Create();
  void Wake() const;
  void Drain() const;
  int descriptor() const { return descriptor_.get(); }

 private:
  explicit WakeEvent(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}

  FileDescriptor descriptor_;
};

}  // namespace shardproof

#endif  // COLLECTIVES_LAUNCH_SOCKETS_H_
