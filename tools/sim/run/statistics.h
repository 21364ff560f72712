// The measurements of a run. Sums over the counted steps. Definitions: imbalance
// and idle fraction are means over steps; load_idle_fraction and barrier_wait_fraction are ratios of sums, as
// a router reports them (a long step counts more); throughput is tokens over simulated seconds; TPOT is the
// mean over requests of (finish - start) / o; TTFT runs from arrival to the end of the request's first step;
// waits are in steps. A step counts from warmup on. A request's wait and TTFT count when it is admitted in a
// counted step. Its TPOT counts when it finishes in a counted step, or later where the steps of the emptying
// group do not count. Threads: none; one run owns it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/stats/histogram.h"
#include "nlohmann/json_fwd.hpp"
#include "router/core/model/request.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

// Energy of barrier-synchronised workers, in watts, seconds and joules:
// P = idle + (peak - idle) * ratio^gamma, ratio = L_g / max_g L_g of the step, clipped to [0, 1]. Defaults:
// 100 W and 400 W of an A100 and exponent 0.7, as in the code that generated the BF-IO paper's table (the
// paper's text uses the model-FLOPs utilisation for the ratio; the code uses the load). They are not measured
// here.
struct PowerModel {
  double idle_w = 100;
  double peak_w = 400;
  double gamma = 0.7;

  double Watts(double ratio) const {
    return idle_w + (peak_w - idle_w) * std::pow(std::clamp(ratio, 0.0, 1.0), gamma);
  }

  // Energy of one step of the whole group. When no worker has any load, every worker draws idle power.
  double StepJoules(absl::Span<const int64_t> load_tokens, double step_s) const {
    int64_t max_load = 0;
    for (const int64_t load : load_tokens) max_load = std::max(max_load, load);
    double watts = 0;
    for (const int64_t load : load_tokens) {
      watts += max_load == 0 ? idle_w : Watts(static_cast<double>(load) / static_cast<double>(max_load));
    }
    return watts * step_s;
  }

  // An alternative reading of the paper's text (section 6, "workers waiting at the barrier operate near
  // P_idle"): each worker draws peak power while it computes, and idle power for the rest of the step.
  double BusyJoules(absl::Span<const double> local_s, double step_s) const {
    double joules = 0;
    for (const double local : local_s) {
      const double busy = std::min(local, step_s);
      joules += peak_w * busy + idle_w * (step_s - busy);
    }
    return joules;
  }
};

// Energy by model-FLOPs utilisation (MFU), the paper's equations (10), (11) and (56) to (58): mfu_g = tokens
// per second * 6 N / FLOPs_peak, ratio = mfu_g / mfu_sat in the power law above.
struct MfuModel {
  // The paper states no number of parameters N; this is Llama-3-8B's. Peak FLOP/s of an A100 in bf16.
  double parameters = 8.03e9;
  double peak_flops = 312e12;
  double saturation = 0.45;

  // `tokens[g]`: tokens that worker g generated in the step.
  double StepJoules(const PowerModel& power, absl::Span<const int64_t> tokens, double step_s) const {
    double watts = 0;
    for (const int64_t made : tokens) {
      const double mfu = static_cast<double>(made) / step_s * 6 * parameters / peak_flops;
      watts += power.Watts(mfu / saturation);
    }
    return watts * step_s;
  }
};

// Waits in whole steps, counted exactly. Quantiles of small integers; a histogram with buckets could not
// distinguish 1 step from 2. Memory: one counter per step of the longest wait. Threads: one.
class WaitCounts {
 public:
  // Negative waits count as 0.
  void Add(int64_t steps);

  int64_t count() const { return count_; }
  int64_t max() const { return static_cast<int64_t>(counts_.size()) - (counts_.empty() ? 0 : 1); }
  // 0 when empty.
  double mean() const { return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_); }

  // The smallest wait that at least a share q of the waits does not exceed, exactly; 0 when empty. q is
  // clipped to [0, 1].
  int64_t Quantile(double q) const;

 private:
  // By wait.
  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  int64_t sum_ = 0;
};

// Request `id` runs on `worker` from the current step on.
struct Started {
  core::RequestId id = 0;
  core::WorkerIndex worker = 0;
};

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

}  // namespace bfio::sim
