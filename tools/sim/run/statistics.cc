#include "tools/sim/run/statistics.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"

namespace bfio::sim {

void Statistics::AddStep(absl::Span<const int64_t> loads, int64_t active, double seconds) {
  const int64_t max = *std::max_element(loads.begin(), loads.end());
  const int64_t sum = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const int64_t workers = static_cast<int64_t>(loads.size());
  ++steps_;
  tokens_ += active;
  seconds_ += seconds;
  imbalance_ += static_cast<double>(workers * max - sum);
  if (max > 0) idle_ += 1 - static_cast<double>(sum) / static_cast<double>(workers * max);
  joules_ += power_.StepJoules(loads, seconds);
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
  run["avg_imbalance_tokens"] = imbalance_ / steps;
  run["idle_fraction"] = idle_ / steps;
  run["throughput_tokens_per_s"] = seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0;
  run["step_s_mean"] = seconds_ / steps;
  run["tpot_s_mean"] = tpot_s_.mean();
  run["ttft_s_mean"] = ttft_s_.mean();
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
  run["completed"] = tpot_s_.count();
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

}  // namespace bfio::sim
