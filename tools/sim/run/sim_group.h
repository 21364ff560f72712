// The simulated workers: who runs, what they hold, who finishes when.
//
// Purpose: the workers' side of a step in O(G + requests admitted + requests finishing). A request with o
// tokens to generate, admitted for step k, finishes in step k + o - 1; it is filed in a ring by that step.
// Loads are kept in closed form (a resident grows by one each step), so no step touches the residents.
// Memory: O(residents + longest output).
#ifndef BFIO_TOOLS_SIM_RUN_SIM_GROUP_H_
#define BFIO_TOOLS_SIM_RUN_SIM_GROUP_H_

#include <cstdint>
#include <vector>

#include "router/core/model/request.h"
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
  SimGroup(int32_t workers, int64_t longest_output);

  // The request runs from `step` on. REQUIRES: step is the current one; output_tokens <= longest_output.
  void Admit(const SimRequest& request, core::WorkerIndex worker, int64_t step, double now_s);

  // L_g in `step`, tokens, a newly admitted request counting s.
  const std::vector<int64_t>& Loads(int64_t step);

  int64_t active() const { return active_; }

  // Those that finish in `step`; they leave. Valid until the next call. Call once for every step, in order.
  const std::vector<Resident>& Finish(int64_t step);

 private:
  struct Worker {
    int64_t active = 0;
    // Sum of (s - first step) over the residents: the load in step k is base + active * k.
    int64_t base = 0;
  };

  std::vector<Worker> workers_;
  std::vector<int64_t> loads_;
  // By last step, modulo the size.
  std::vector<std::vector<Resident>> ring_;
  std::vector<Resident> finished_;
  int64_t active_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_SIM_GROUP_H_
