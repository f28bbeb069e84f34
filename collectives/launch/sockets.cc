#include "collectives/launch/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "collectives/launch/deadline.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

// Connections that wait for Accept: every rank of a large job may come at once.
constexpr int kBacklog = 1024;

// A machine that vanished is noticed after 10 + 3 * 5 seconds without a sign of it. The kernel of
// a stopped process still answers.
constexpr int kKeepAliveIdleSeconds = 10;
constexpr int kKeepAliveIntervalSeconds = 5;
constexpr int kKeepAliveProbes = 3;

std::string ErrorText(int error) { return std::generic_category().message(error); }

void SetOption(const FileDescriptor& socket, int level, int option, int value) {
  // A refused option costs time, not correctness.
  (void)setsockopt(socket.get(), level, option, &value, sizeof(value));
}

void SetConnectionOptions(const FileDescriptor& socket) {
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
}

FileDescriptor NewSocket(int family) {
  return FileDescriptor(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
}

const sockaddr* Pointer(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

absl::StatusOr<std::vector<SocketAddress>> ResolveWith(absl::string_view host, int32_t port,
                                                       int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string name(host);
  const int error =
      getaddrinfo(host.empty() ? nullptr : name.c_str(), absl::StrCat(port).c_str(), &hints, &list);
  if (error != 0) {
    const std::string message =
        absl::StrCat("the host \"", host, "\" has no address: ", gai_strerror(error),
                     "; accepted: a host name or an IPv4 or IPv6 address");
    if (error == EAI_NONAME) return absl::InvalidArgumentError(message);
    return absl::UnavailableError(message);
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, item->ai_addr, item->ai_addrlen);
    address.size = item->ai_addrlen;
  }
  return addresses;
}

absl::Status ListenError(int error, const SocketAddress& address) {
  const std::string message =
      absl::StrCat("cannot listen on ", address.Text(), ": ", ErrorText(error));
  if (error == EADDRINUSE) return absl::AlreadyExistsError(message);
  if (error == EADDRNOTAVAIL) return absl::FailedPreconditionError(message);
  if (error == EACCES) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

absl::StatusOr<FileDescriptor> ListenOn(const SocketAddress& address) {
  FileDescriptor socket = NewSocket(address.storage.ss_family);
  if (socket.get() < 0) return ListenError(errno, address);
  // Connections of an earlier job that linger do not hold the port; listeners do.
  SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.storage.ss_family == AF_INET6) SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.get(), Pointer(address), address.size) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return ListenError(errno, address);
  }
  return socket;
}

// Waits until a connection that was begun is there or has failed. Returns its errno.
absl::StatusOr<int> FinishConnect(const FileDescriptor& socket, Deadline deadline) {
  while (true) {
    pollfd item = {socket.get(), POLLOUT, 0};
    const int ready = poll(&item, 1, deadline.PollMilliseconds());
    if (ready > 0) break;
    if (ready < 0 && errno != EINTR) return errno;
    if (deadline.Expired()) return absl::DeadlineExceededError("no answer");
  }
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

// A connection to a free port of this machine may be given that very port at its own end, and
// then meets itself.
bool MeetsItself(const FileDescriptor& socket) {
  SocketAddress own;
  SocketAddress peer;
  own.size = peer.size = sizeof(sockaddr_storage);
  return getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.size) == 0 &&
         getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.size) == 0 &&
         own.Text() == peer.Text();
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::string SocketAddress::Text() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET6) {
    const auto* const address = reinterpret_cast<const sockaddr_in6*>(&storage);
    inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof(text));
    return absl::StrCat("[", text, "]:", ntohs(address->sin6_port));
  }
  const auto* const address = reinterpret_cast<const sockaddr_in*>(&storage);
  inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text));
  return absl::StrCat(text, ":", ntohs(address->sin_port));
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view host, int32_t port) {
  return ResolveWith(host, port, 0);
}

absl::StatusOr<FileDescriptor> Listen(absl::string_view host, int32_t port) {
  SHARDPROOF_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses,
                              ResolveWith(host, port, AI_PASSIVE));
  if (host.empty()) {
    // IPv6's "all" takes IPv4 connections as well.
    std::stable_partition(addresses.begin(), addresses.end(), [](const SocketAddress& address) {
      return address.storage.ss_family == AF_INET6;
    });
  }
  absl::Status failure = absl::UnavailableError("no address");
  for (const SocketAddress& address : addresses) {
    absl::StatusOr<FileDescriptor> listener = ListenOn(address);
    if (listener.ok()) return listener;
    failure = listener.status();
  }
  return failure;
}

absl::StatusOr<int32_t> PortOf(const FileDescriptor& listener) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size) !=
      0) {
    return absl::UnavailableError(absl::StrCat("getsockname: ", ErrorText(errno)));
  }
  if (address.storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

absl::StatusOr<std::optional<FileDescriptor>> Accept(const FileDescriptor& listener) {
  while (true) {
    FileDescriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() >= 0) {
      SetConnectionOptions(socket);
      return socket;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    return absl::UnavailableError(absl::StrCat("accept: ", ErrorText(errno)));
  }
}

absl::StatusOr<FileDescriptor> Connect(const SocketAddress& address, Deadline deadline) {
  FileDescriptor socket = NewSocket(address.storage.ss_family);
  if (socket.get() < 0) {
    return absl::UnavailableError(absl::StrCat("socket: ", ErrorText(errno)));
  }
  int error = connect(socket.get(), Pointer(address), address.size) == 0 ? 0 : errno;
  // An interrupted connect goes on, too.
  if (error == EINPROGRESS || error == EINTR) {
    absl::StatusOr<int> finished = FinishConnect(socket, deadline);
    if (!finished.ok()) {
      return absl::DeadlineExceededError(absl::StrCat(address.Text(), " does not answer"));
    }
    error = *finished;
  }
  if (error == 0 && MeetsItself(socket)) error = ECONNREFUSED;
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot connect to ", address.Text(), ": ", ErrorText(error)));
  }
  SetConnectionOptions(socket);
  return socket;
}

std::string NameOfThisMachine() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' && Resolve(name, 0).ok()) {
    return name;
  }
  return "127.0.0.1";
}

absl::StatusOr<WakeEvent> WakeEvent::Create() {
  FileDescriptor descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (descriptor.get() < 0) {
    return absl::UnavailableError(absl::StrCat("eventfd: ", ErrorText(errno)));
  }
  return WakeEvent(std::move(descriptor));
}

void WakeEvent::Wake() const {
  const uint64_t one = 1;
  while (write(descriptor_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void WakeEvent::Drain() const {
  uint64_t count = 0;
  while (read(descriptor_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

}  // namespace shardproof
