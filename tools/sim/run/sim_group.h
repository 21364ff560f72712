// The simulated workers: running requests, their loads, and their ends.
//
// Purpose: the workers' side of a step in O(G + requests admitted + requests finishing). When a request is
// admitted its last step is known and it is filed in a ring by that step. Loads are kept in closed form
// (drift.h: all residents grow alike), so no step touches the residents. This is the BF-IO paper's discrete
// model and not the engines' (worker/scheduler/engine_model.h): a prompt takes one step, and all residents
// generate in every step. Threads: none. Memory: O(residents + longest output).
#ifndef BFIO_TOOLS_SIM_RUN_SIM_GROUP_H_
#define BFIO_TOOLS_SIM_RUN_SIM_GROUP_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "router/core/model/request.h"
#include "tools/sim/run/drift.h"
#include "tools/sim/run/request_source.h"

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

  // Takes out the request that was admitted last on the worker, before it has made a token in `step`.
  // REQUIRES: a request runs there; call it for every worker before Finish(step), if at all.
  Resident PreemptYoungest(core::WorkerIndex worker, int64_t step);

  // L_g in `step`, tokens, a newly admitted request counting s.
  const std::vector<int64_t>& Loads(int64_t step);

  int64_t active() const { return active_; }
  int64_t ActiveOn(core::WorkerIndex worker) const { return workers_[static_cast<size_t>(worker)].active; }

  // Tokens that all residents make in `step`; those that end make no more than they have left.
  int64_t Tokens(int64_t step);

  // Those that finish in `step`; they leave. Valid until the next call. Call once for every step, in order.
  const std::vector<Resident>& Finish(int64_t step);

  // Calls with every resident and the tokens it has left after `step`; after Finish(step). O(residents).
  void ForEachResident(int64_t step,
                       const std::function<void(const Resident& resident, int64_t tokens_left)>& visit);

 private:
  struct Worker {
    int64_t active = 0;
    // Sum of s - D(first step - 1) over the residents: the load in step k is base + active * D(k - 1).
    int64_t base = 0;
    // Who was admitted, and the last step of each; youngest last. Some may have ended.
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
