// The simulated workers: running requests, their loads, and their ends. The workers' side of a step in O(G +
// requests admitted + requests finishing). The last step of a request is known when it is admitted, and the
// request is stored in a ring indexed by that step. Loads are computed in closed form (drift.h: all residents
// grow alike), so no step visits the residents. This is the discrete model of the BF-IO paper, in which a
// prompt takes one step and all residents generate in every step; the engines' model is
// worker/scheduler/batch_planner.h. Threads: none. Memory: O(residents + longest output).
#ifndef BFIO_TOOLS_SIM_RUN_SIM_GROUP_H_
#define BFIO_TOOLS_SIM_RUN_SIM_GROUP_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "router/core/model/request.h"
#include "tools/sim/run/drift.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {

struct Resident {
  SimRequest request;
  core::WorkerIndex worker = 0;
  int64_t first_step = 0;
  // Simulated time at which its first step began.
  double start_s = 0;
};

class SimGroup {
 public:
  SimGroup(int32_t workers, int64_t longest_output, Drift drift);

  // The request runs from `step` on. REQUIRES: step is the current one; output_tokens <= longest_output.
  void Admit(const SimRequest& request, core::WorkerIndex worker, int64_t step, double now_s);

  // Removes the request that was admitted last on the worker, before it has generated a token in `step`.
  // REQUIRES: a request runs there; called only before Finish(step).
  Resident PreemptYoungest(core::WorkerIndex worker, int64_t step);

  // L_g in `step`, in tokens; a newly admitted request counts s.
  const std::vector<int64_t>& Loads(int64_t step);

  int64_t active() const { return active_; }
  int64_t ActiveOn(core::WorkerIndex worker) const { return workers_[static_cast<size_t>(worker)].active; }

  // Tokens that all residents generate in `step`; a request that ends generates only the tokens it has left.
  int64_t Tokens(int64_t step);

  // Removes and returns the requests that finish in `step`. Valid until the next call. Called once for every
  // step, in order.
  const std::vector<Resident>& Finish(int64_t step);

  // Calls `visit` with every resident and the number of tokens it has left after `step`; after Finish(step).
  // O(residents).
  void ForEachResident(int64_t step,
                       const std::function<void(const Resident& resident, int64_t tokens_left)>& visit);

 private:
  struct Worker {
    int64_t active = 0;
    // Sum of s - D(first step - 1) over the residents: the load in step k is base + active * D(k - 1).
    int64_t base = 0;
    // Admitted requests with the last step of each, youngest last. Some may have ended.
    std::vector<std::pair<core::RequestId, int64_t>> order;
  };
  std::vector<Resident>& Ending(int64_t step) { return ring_[step % static_cast<int64_t>(ring_.size())]; }

  Drift drift_;
  std::vector<Worker> workers_;
  std::vector<int64_t> loads_;
  // By last step, modulo the size.
  std::vector<std::vector<Resident>> ring_;
  std::vector<Resident> finished_;
  int64_t active_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_SIM_GROUP_H_
