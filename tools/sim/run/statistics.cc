#include "tools/sim/run/statistics.h"

#include <numeric>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

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

nlohmann::ordered_json Statistics::ToJson(const SimOptions& options, const std::string& workload) const {
  const double steps = static_cast<double>(std::max<int64_t>(1, steps_));
  nlohmann::ordered_json run;
  run["policy"] = options.policy;
  run["objective"] = options.objective;
  run["horizon"] = options.horizon;
  run["lookahead"] = options.lookahead;
  run["workload"] = workload;
  run["mode"] = options.mode;
  run["load"] = options.load;
  run["reveal"] = options.reveal;
  run["workers"] = options.workers;
  run["batch"] = options.batch;
  run["seed"] = options.seed;
  run["warmup"] = options.warmup;
  run["steps"] = steps_;
  run["dispatch"] = options.dispatch;
  run["plan_mode"] = options.plan_mode;
  run["report_delay"] = options.report_delay;
  run["drift"] = options.drift;
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
  run["admission"] = options.admission;
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

std::string TableHeader() {
  return absl::StrFormat("%-15s %-9s %11s %7s %11s %9s %9s %9s %10s %9s %9s %10s %9s %9s", "policy",
                         "objective", "imbalance", "idle", "tokens/s", "step ms", "TPOT ms", "TTFT s",
                         "wait mean", "wait p99", "wait max", "energy kJ", "decide us", "p99 us");
}

std::string TableLine(const nlohmann::ordered_json& run) {
  const auto number = [&](const char* key) { return run.at(key).get<double>(); };
  const std::string policy = run.at("policy");
  const std::string objective = policy == "bf_io" ? run.at("objective").get<std::string>() : "-";
  return absl::StrFormat(
      "%-15s %-9s %11.0f %6.1f%% %11.0f %9.3f %9.3f %9.3f %10.1f %9.0f %9.0f %10.1f %9.1f %9.1f", policy,
      objective, number("avg_imbalance_tokens"), 100 * number("idle_fraction"),
      number("throughput_tokens_per_s"), 1e3 * number("step_s_mean"), 1e3 * number("tpot_s_mean"),
      number("ttft_s_mean"), number("wait_steps_mean"), number("wait_steps_p99"), number("wait_steps_max"),
      1e-3 * number("energy_j"), number("decide_us_p50"), number("decide_us_p99"));
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
