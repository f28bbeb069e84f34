// Watchdog: a bound on a call that cannot be left, such as MPI_Init.
//
//   Watchdog watchdog("rank 1 waited 60s in MPI_Init", absl::Seconds(60));
//   MPI_Init(...);
#ifndef COLLECTIVES_MPI_WATCHDOG_H_
#define COLLECTIVES_MPI_WATCHDOG_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace shardproof {

// Unless it is destroyed within `timeout`, `line` goes to stderr and the process ends with exit
// status 2, without destructors.
//
// Nothing else in a library ends the process, and here no Status can be returned: the thread that
// would return it is inside MPI, which gives back nothing before all processes of the job have
// come, has no timeout, and cannot be called off from another thread. For mpirun a process that
// ends like this is reason to end the whole job, those that are stopped included.
class Watchdog {
 public:
  Watchdog(std::string line, absl::Duration timeout);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void Watch(absl::Duration timeout);

  const std::string line_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool called_off_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace shardproof

#endif  // COLLECTIVES_MPI_WATCHDOG_H_
