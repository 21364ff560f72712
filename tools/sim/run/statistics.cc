#include "tools/sim/run/statistics.h"

#include <numeric>

#include "tools/sim/rank/shared.h"

namespace bfio::sim {

void Statistics::AddStep(const StepView& view) {
  const int64_t max = *std::max_element(view.loads.begin(), view.loads.end());
  const int64_t sum = std::accumulate(view.loads.begin(), view.loads.end(), int64_t{0});
  const int64_t workers = static_cast<int64_t>(view.loads.size());
  ++steps_;
  tokens_ += view.tokens;
  request_steps_ += view.residents;
  waiting_ += view.waiting;
  seconds_ += view.seconds;
  balanced_s_ += view.balanced_s;
  imbalance_ += static_cast<double>(workers * max - sum);
  if (max > 0) idle_ += 1 - static_cast<double>(sum) / static_cast<double>(workers * max);
  max_load_ += static_cast<double>(max);
  mean_load_ += static_cast<double>(sum) / static_cast<double>(workers);
  work_s_ += std::accumulate(view.local_s.begin(), view.local_s.end(), 0.0) / static_cast<double>(workers);
  joules_ += power_.StepJoules(view.loads, view.seconds);
  joules_by_wait_ += power_.BusyJoules(view.local_s, view.seconds);
  joules_by_mfu_ += mfu_.StepJoules(power_, view.active, view.seconds);
}

BFIO_JSON_OF(SimOptions, policy, objective, horizon, lookahead, mode, load, reveal, workers, batch, seed,
             warmup, steps, dispatch, plan_mode, report_delay, drift, admission)

nlohmann::ordered_json Statistics::ToJson(const SimOptions& options, const std::string& workload) const {
  const double steps = static_cast<double>(std::max<int64_t>(1, steps_));
  nlohmann::ordered_json run = options;
  run["workload"] = workload;
  run["steps"] = steps_;
  run["avg_imbalance_tokens"] = imbalance_ / steps;
  run["idle_fraction"] = idle_ / steps;
  run["load_idle_fraction"] = max_load_ > 0 ? 1 - mean_load_ / max_load_ : 0;
  run["barrier_wait_fraction"] = seconds_ > 0 ? 1 - work_s_ / seconds_ : 0;
  run["slots_taken_fraction"] =
      static_cast<double>(request_steps_) / steps / (static_cast<double>(options.workers) * options.batch);
  run["waiting_mean"] = static_cast<double>(waiting_) / steps;
  run["throughput_tokens_per_s"] = seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0;
  run["step_s_mean"] = seconds_ / steps;
  run["balanced_step_s_mean"] = balanced_s_ / steps;
  run["tpot_s_mean"] = tpot_s_.mean();
  run["tpot_s_p99"] = tpot_s_.Quantile(0.99);
  run["ttft_s_mean"] = ttft_s_.mean();
  run["ttft_s_p50"] = ttft_s_.Quantile(0.5);
  run["ttft_s_p99"] = ttft_s_.Quantile(0.99);
  run["wait_steps_mean"] = wait_steps_.mean();
  WaitCounts all_waits = wait_steps_;
  for (int64_t wait_steps : still_waiting_) all_waits.Add(wait_steps);
  run["wait_steps_p50"] = all_waits.Quantile(0.5);
  run["wait_steps_p99"] = all_waits.Quantile(0.99);
  run["wait_steps_max"] = all_waits.max();
  run["wait_steps_p99_admitted"] = wait_steps_.Quantile(0.99);
  run["wait_steps_max_admitted"] = wait_steps_.max();
  run["energy_j"] = joules_;
  run["energy_by_mfu_j"] = joules_by_mfu_;
  run["energy_by_wait_j"] = joules_by_wait_;
  run["energy_per_token_j"] = tokens_ > 0 ? joules_ / static_cast<double>(tokens_) : 0;
  run["simulated_s"] = seconds_;
  run["tokens"] = tokens_;
  run["request_steps"] = request_steps_;
  run["completed"] = tpot_s_.count();
  run["refused"] = refused_;
  run["kv_used_fraction"] =
      options.kv_tokens > 0 ? mean_load_ / steps / static_cast<double>(options.kv_tokens) : 0;
  run["overflows"] = overflows_;
  run["preempted"] = preempted_;
  run["recomputed_tokens"] = recomputed_;
  run["decide_us_mean"] = decide_us_.mean();
  run["decide_us_p50"] = decide_us_.Quantile(0.5);
  run["decide_us_p99"] = decide_us_.Quantile(0.99);
  run["decide_us_max"] = decide_us_.max();
  return run;
}

void WaitCounts::Add(int64_t steps) {
  steps = std::max<int64_t>(0, steps);
  if (steps >= static_cast<int64_t>(counts_.size())) counts_.resize(static_cast<size_t>(steps) + 1);
  ++counts_[static_cast<size_t>(steps)];
  ++count_;
  sum_ += steps;
}

int64_t WaitCounts::Quantile(double q) const {
  if (count_ == 0) return 0;
  const int64_t rank = std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(count_))));
  int64_t below = 0;
  for (int64_t steps = 0; steps < static_cast<int64_t>(counts_.size()); ++steps) {
    below += counts_[static_cast<size_t>(steps)];
    if (below >= rank) return steps;
  }
  return max();
}

}  // namespace bfio::sim
