// Many runs over the machine's cores.
//
// Purpose: what every experiment hands its runs to. Results come in the order of the runs and are the same
// for any number of threads. Threads: Run starts threads of its own and returns when they have ended; a
// run's tap is called on one of them; `go_on` and `progress` on any, under a lock.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_RUNNER_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/run/options.h"
#include "tools/sim/run/simulation.h"

namespace bfio::sim {

struct PlannedRun {
  // Names the run in progress lines and errors.
  std::string name;
  SimOptions options;
  std::shared_ptr<const Trace> trace;
  // Sees every step; may be empty. No two runs share what it writes to.
  StepTap tap;
};

// What Simulation::Run returns (design.md section 4 lists the keys).
using RunJson = nlohmann::ordered_json;

class Runner {
 public:
  using Progress = std::function<void(double share_done, const std::string& run)>;
  using GoOn = std::function<bool()>;

  // `progress` is called after parts of runs, `go_on` now and then; false ends everything with CANCELLED.
  // Either may be empty.
  Runner(int32_t threads, Progress progress, GoOn go_on)
      : threads_(threads), progress_(std::move(progress)), go_on_(std::move(go_on)) {}

  // The first error, if any, naming its run.
  absl::StatusOr<std::vector<RunJson>> Run(const std::vector<PlannedRun>& runs) const;

  // The same for any work: `task` is called once for each index of `names`, on some thread, and asks `go_on`
  // now and then whether to go on; where it says no, what the task returns does not matter.
  absl::Status ForEach(const std::vector<std::string>& names,
                       const std::function<absl::Status(size_t index, const GoOn& go_on)>& task) const;

 private:
  int32_t threads_;
  Progress progress_;
  GoOn go_on_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_RUNNER_H_
