#include "collectives/mpi/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace shardproof {
namespace {

// A clock counts no further than some hundred years from now.
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

}  // namespace

Watchdog::Watchdog(std::string line, absl::Duration timeout)
    : line_(std::move(line)), thread_([this, timeout] { Watch(std::min(timeout, kLongest)); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    called_off_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::Watch(absl::Duration timeout) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  std::unique_lock<std::mutex> lock(mutex_);
  if (changed_.wait_until(lock, end, [this] { return called_off_; })) return;
  std::fprintf(stderr, "%s\n", line_.c_str());
  std::fflush(stderr);
  // Not exit: what other threads and MPI hold would be destroyed under them.
  _exit(2);
}

}  // namespace shardproof
