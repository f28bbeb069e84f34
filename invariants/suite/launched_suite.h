// RunLaunchedSuite: RunSuite in each process of a launcher (ranks_here.h), or in this one alone
// where none has started it. All processes judge the same cases: the seed is fixed, and after each
// case they go on with rank 0's verdict.
#ifndef INVARIANTS_SUITE_LAUNCHED_SUITE_H_
#define INVARIANTS_SUITE_LAUNCHED_SUITE_H_

#include <functional>

#include "absl/time/time.h"
#include "invariants/suite/ranks_here.h"
#include "invariants/suite/run_case.h"
#include "invariants/suite/suite_program.h"

namespace shardproof {

// Makes the factory of GPU engines for this process's ranks, which have been joined and outlive it.
// `timeout`: how long ranks wait for each other; a collective's is shorter (engine_flags.h).
using DeviceEnginesOf =
    std::function<DeviceEngineFactory(RanksHere& ranks, absl::Duration timeout)>;

// `program.join`, `prepare`, `agree` and `tells` are set here, and all ranks agree on what `ready`
// says. `device_engines` may be empty: engines that need GPUs then have none. The exit status is
// RunSuite's; 2, with one line on stderr, for bad arguments, where the ranks cannot be joined or
// are not ready, and where one of them is gone or stopped: the whole job then ends.
int RunLaunchedSuite(int argc, char** argv, SuiteProgram program,
                     const DeviceEnginesOf& device_engines);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_LAUNCHED_SUITE_H_
