// Whether a run met the overload condition of the BF-IO paper's theorems (Definition 1): whatever one prompt
// length is taken away, the pool still holds as many requests as there are free slots.
//
// Purpose: theory speaks of overloaded runs, and what waits depends on the rule; so it is looked at. Threads:
// one run's tap owns it; read it when the run has ended.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_OVERLOAD_WATCH_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_OVERLOAD_WATCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/workload/trace.h"
#include "tools/sim/run/options.h"
#include "tools/sim/run/statistics.h"

namespace bfio::sim {

class OverloadWatch {
 public:
  // REQUIRES: options.mode == "overload", dispatch == "pool", no KV limit.
  OverloadWatch(const SimOptions& options, std::shared_ptr<const Trace> trace);

  // Call with every step, those of the warm-up too.
  void See(const StepView& view);

  // Of the counted steps in which a slot was free, those that met the condition; 1 when there was none.
  double share() const;

 private:
  const TraceRequest& Request(int64_t id) const;

  std::shared_ptr<const Trace> trace_;
  int64_t slots_;
  int64_t warmup_;
  // Requests revealed and admitted so far, and waiting ones by prompt length.
  int64_t revealed_ = 0, admitted_ = 0;
  std::vector<int64_t> waiting_;
  int64_t decisions_ = 0, met_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_OVERLOAD_WATCH_H_
