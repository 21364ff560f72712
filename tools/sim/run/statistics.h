// The measurements of a run, and its two output formats.
//
// Purpose: sums over the counted steps. Definitions: imbalance and idle fraction are means over steps;
// load_idle_fraction and barrier_wait_fraction are ratios of sums, as a router reports them (a long step
// counts more); throughput is tokens over simulated seconds; TPOT is the mean over requests of (finish -
// start) / o; TTFT runs from arrival to the end of the request's first step; waits are in steps. A step
// counts from warmup on. A request's wait and TTFT count when it is admitted in a counted step. Its TPOT
// counts when it finishes in a counted step, or later where the steps of the emptying group do not count.
// Threads: none; one run owns it.
#ifndef BFIO_TOOLS_SIM_RUN_STATISTICS_H_
#define BFIO_TOOLS_SIM_RUN_STATISTICS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/stats/histogram.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/run/dispatcher.h"
#include "tools/sim/run/energy.h"
#include "tools/sim/run/options.h"
#include "tools/sim/run/wait_counts.h"

namespace bfio::sim {

// One step. Spans are by rank and borrowed.
struct StepView {
  int64_t step = 0;
  // Simulated time at which the step begins, and its duration.
  double begin_s = 0;
  double seconds = 0;
  // The step time under perfect balance of the same work.
  double balanced_s = 0;
  absl::Span<const int64_t> loads;
  // Requests active on each worker.
  absl::Span<const int64_t> active;
  // Seconds that each worker computes; then it waits at the barrier.
  absl::Span<const double> local_s;
  int64_t tokens = 0;
  int64_t residents = 0;
  // Requests that have not been admitted yet.
  int64_t waiting = 0;
  // Requests admitted in this step, and by worker those that end with it.
  absl::Span<const Started> started;
  absl::Span<const std::vector<core::RequestId>> finished;
};

class Statistics {
 public:
  void AddStep(const StepView& view);
  void AddDecision(double microseconds) { decide_us_.Add(microseconds); }
  void AddAdmission(int64_t wait_steps) { wait_steps_.Add(wait_steps); }
  void AddFirstToken(double ttft_s) { ttft_s_.Add(ttft_s); }
  void AddFinish(double tpot_s) { tpot_s_.Add(tpot_s); }
  // The wait so far of a request that was still waiting at the end. Without these, a policy would look fair
  // because the requests that it starves are never admitted. They count for quantiles and the longest wait,
  // not for the mean.
  void AddStillWaiting(int64_t wait_steps) { still_waiting_.push_back(wait_steps); }
  // A request that does not fit on any worker.
  void AddRefused() { ++refused_; }
  // A request preempted for lack of KV memory; `tokens` are those it held, `first` whether it was its
  // worker's first in the step.
  void AddPreemption(int64_t tokens, bool first) {
    ++preempted_;
    recomputed_ += tokens;
    if (first) ++overflows_;
  }

  nlohmann::ordered_json ToJson(const SimOptions& options, const std::string& workload) const;

 private:
  int64_t steps_ = 0;
  int64_t tokens_ = 0;
  // Sums over steps of active and of waiting requests.
  int64_t request_steps_ = 0;
  int64_t waiting_ = 0;
  double seconds_ = 0;
  double balanced_s_ = 0;
  double imbalance_ = 0;
  double idle_ = 0;
  // Sums over steps of max L, mean L and the workers' mean local time.
  double max_load_ = 0;
  double mean_load_ = 0;
  double work_s_ = 0;
  double joules_ = 0;
  double joules_by_mfu_ = 0;
  double joules_by_wait_ = 0;
  std::vector<int64_t> still_waiting_;
  int64_t refused_ = 0;
  int64_t preempted_ = 0;
  int64_t recomputed_ = 0;
  // Steps of a worker with a preemption.
  int64_t overflows_ = 0;
  PowerModel power_;
  MfuModel mfu_;
  Histogram decide_us_;
  WaitCounts wait_steps_;
  Histogram ttft_s_;
  Histogram tpot_s_;
};

// The header of the table, and the line of one run.
std::string TableHeader();
std::string TableLine(const nlohmann::ordered_json& run);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_STATISTICS_H_
