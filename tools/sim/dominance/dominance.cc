#include "tools/sim/dominance/dominance.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/core/policy/policy.h"
#include "tools/sim/rank/shared.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {

BFIO_JSON_OF(RunMeasurements, steps, step_s_mean, idle_fraction, throughput_tokens_per_s, wait_steps_p99,
             wait_steps_max)

namespace {

// Requests drawn from a profile; longer simulations repeat them.
constexpr int64_t kProfileRequests = 20'000;

// The maximum factor by which a low load lengthens a run.
constexpr double kMostStretch = 4;

int64_t StepsFor(const DominanceSetting& setting, int64_t steps) {
  const double divisor = setting.workers >= 256 ? 4 : setting.workers >= 64 ? 2 : 1;
  const double stretch =
      setting.mode == "arrivals" ? std::clamp(kSaturationLoad / setting.level, 1.0, kMostStretch) : 1;
  return std::max<int64_t>(1, std::llround(static_cast<double>(steps) * stretch / divisor));
}

// The mean reservation of a request: its prompt plus the longest output, as in the simulator.
double MeanReserve(const Trace& trace) {
  double prompts = 0;
  for (const TraceRequest& request : trace.requests) prompts += static_cast<double>(request.prompt_tokens);
  return prompts / static_cast<double>(trace.requests.size()) + static_cast<double>(LongestOutput(trace));
}

absl::Status CheckLists(const DominanceOptions& options) {
  const auto empty = [](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("dominance needs at least one ", what));
  };
  if (options.workloads.empty()) return empty("workload");
  if (options.groups.empty()) return empty("number of ranks (--ranks)");
  if (options.loads.empty() && options.depths.empty()) return empty("level (--loads or --depths)");
  if (options.seeds < 1) return empty("seed (--seeds)");
  if (options.threads < 1) return empty("thread (--threads)");
  return absl::OkStatus();
}

// Quantiles of Student's t with 1, 2, ... degrees of freedom: 95 % lie within +-.
constexpr double kStudentWithin[] = {12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26};

// Relative excess of the candidate's step time over a baseline's: the mean over the seeds, and the half width
// of its 95 % confidence interval, which is undefined for one seed.
std::pair<double, std::optional<double>> ExcessOver(const std::vector<RunMeasurements>& ours,
                                                    const std::vector<RunMeasurements>& theirs) {
  const auto n = static_cast<double>(ours.size());
  double sum = 0, squares = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double excess = ours[i].step_s_mean / theirs[i].step_s_mean - 1;
    sum += excess;
    squares += excess * excess;
  }
  const double mean = sum / n;
  if (ours.size() < 2) return {mean, std::nullopt};
  const double error = std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1));
  return {mean, error * kStudentWithin[std::min(ours.size() - 1, std::size(kStudentWithin)) - 1]};
}

RunMeasurements MeanOf(const std::vector<RunMeasurements>& seeds) {
  const auto n = static_cast<double>(seeds.size());
  RunMeasurements mean{.steps = seeds[0].steps};
  double wait = 0;
  for (const RunMeasurements& run : seeds) {
    mean.step_s_mean += run.step_s_mean / n;
    mean.idle_fraction += run.idle_fraction / n;
    mean.throughput_tokens_per_s += run.throughput_tokens_per_s / n;
    wait += static_cast<double>(run.wait_steps_p99) / n;
    mean.wait_steps_max = std::max(mean.wait_steps_max, run.wait_steps_max);
  }
  mean.wait_steps_p99 = std::llround(wait);
  return mean;
}

}  // namespace

std::vector<DominanceWorkload> StructuredWorkloads() {
  std::vector<DominanceWorkload> result;
  const auto add = [&](const char* name) -> DominanceWorkload& {
    DominanceWorkload& workload = result.emplace_back();
    workload.name = name;
    workload.profile = "conversation";
    return workload;
  };
  add("bursts").burst = 64;
  add("two_priorities").classes = 2;
  add("two_tenants").tenants = 2;
  add("eight_slots").batch = 8;
  // KV memory is the limit once two thirds of the slots are taken.
  add("short_kv").kv_share = 2.0 / 3;
  return result;
}

absl::StatusOr<Dominance> Dominance::Create(DominanceOptions options) {
  BFIO_RETURN_IF_ERROR(CheckLists(options));
  Dominance result(std::move(options));
  result.policies_.push_back(result.options_.candidate);
  for (const std::string& name : result.options_.baselines) {
    if (std::find(result.policies_.begin(), result.policies_.end(), name) == result.policies_.end()) {
      result.policies_.push_back(name);
    }
  }
  const auto fcfs = std::find(result.policies_.begin(), result.policies_.end(), "fcfs");
  result.fcfs_ = static_cast<size_t>(fcfs - result.policies_.begin());
  if (fcfs == result.policies_.end()) result.policies_.push_back("fcfs");
  if (result.policies_.size() < 2) {
    return absl::InvalidArgumentError("dominance: --policy must have a baseline other than --candidate");
  }
  SimOptions options_of = result.options_.base;
  for (const std::string& policy : result.policies_) {
    options_of.policy = policy;
    const core::PolicySetting setting = PolicyOf(options_of);
    BFIO_RETURN_IF_ERROR(core::MakePolicy(setting.name, setting.options).status());
  }
  BFIO_RETURN_IF_ERROR(result.PrepareTraces());
  for (int32_t w = 0; w < std::ssize(result.options_.workloads); ++w) {
    for (const int32_t workers : result.options_.groups) {
      for (const double load : result.options_.loads)
        result.settings_.push_back({w, workers, "arrivals", load});
      for (const double depth : result.options_.depths)
        result.settings_.push_back({w, workers, "overload", depth});
    }
  }
  for (const DominanceSetting& setting : result.settings_) {
    BFIO_RETURN_IF_ERROR(Validate(result.OptionsOf(setting, 1, "fcfs")));
  }
  return result;
}

absl::Status Dominance::PrepareTraces() {
  for (const DominanceWorkload& workload : options_.workloads) {
    std::vector<Trace>& seeds = traces_.emplace_back();
    for (uint64_t seed = 1; seed <= static_cast<uint64_t>(options_.seeds); ++seed) {
      absl::StatusOr<Trace> trace = workload.profile.empty()
                                        ? Rotated(workload.trace, seed)
                                        : SampleProfile(workload.profile, kProfileRequests, seed);
      if (!trace.ok()) return trace.status();
      if (trace->requests.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(workload.name, ": no requests"));
      }
      if (!trace->has_arrivals) {
        trace = WithArrivals(*trace, seed, workload.burst);
      }
      seeds.push_back(*std::move(trace));
    }
  }
  return absl::OkStatus();
}

const Trace& Dominance::PreparedTrace(const DominanceSetting& setting, uint64_t seed) const {
  return traces_[static_cast<size_t>(setting.workload)][seed - 1];
}

int32_t Dominance::BatchOf(const DominanceSetting& setting) const {
  const int32_t batch = options_.workloads[static_cast<size_t>(setting.workload)].batch;
  return batch > 0 ? batch : options_.base.batch;
}

int64_t Dominance::RevealOf(const DominanceSetting& setting, uint64_t seed) const {
  const double free = MeanFreeSlots(PreparedTrace(setting, seed), setting.workers, BatchOf(setting));
  return std::max<int64_t>(1, std::llround(setting.level * free));
}

SimOptions Dominance::OptionsOf(const DominanceSetting& setting, uint64_t seed,
                                const std::string& policy) const {
  SimOptions result = options_.base;
  const DominanceWorkload& workload = options_.workloads[static_cast<size_t>(setting.workload)];
  const Trace& trace = PreparedTrace(setting, seed);
  result.batch = BatchOf(setting);
  result.classes = workload.classes;
  result.tenants = workload.tenants;
  if (workload.kv_share > 0) {
    result.kv_tokens = std::llround(workload.kv_share * result.batch * MeanReserve(trace));
  }
  result.policy = policy;
  result.workers = setting.workers;
  result.mode = setting.mode;
  result.seed = seed;
  result.steps = StepsFor(setting, result.steps);
  if (setting.mode == "overload") {
    result.reveal = RevealOf(setting, seed);
    return result;
  }
  const double output = MeanOutputTokens(trace);
  result.warmup = std::max({result.warmup, LongestOutput(trace), std::lround(kWarmupOutputs * output)});
  result.steps = std::max<int64_t>(result.steps, std::lround(kCountedOutputs * output));
  result.load = setting.level / kSaturationLoad *
                FullSlotRequestRate(trace, setting.workers, result.batch, result.cost) / ArrivalRate(trace);
  return result;
}

absl::StatusOr<RunMeasurements> Dominance::RunOne(const DominanceSetting& setting, uint64_t seed,
                                                  const std::string& policy,
                                                  const std::function<bool()>& go_on) const {
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<Simulation> simulation,
                        Simulation::Create(OptionsOf(setting, seed, policy), PreparedTrace(setting, seed)));
  BFIO_ASSIGN_OR_RETURN(const nlohmann::ordered_json run,
                        simulation->Run([&](int64_t done) { return done % 64 != 0 || go_on(); }));
  return run.get<RunMeasurements>();
}

absl::Status Dominance::Run(const std::function<void(size_t setting)>& done,
                            const std::function<bool()>& go_on) {
  const auto seeds = static_cast<size_t>(options_.seeds), runs = policies_.size() * seeds;
  for (DominanceSetting& setting : settings_)
    setting.runs.assign(policies_.size(), std::vector<RunMeasurements>(seeds));
  std::atomic<bool> stop = false;
  // Guarded by the mutex: the first failure, the runs missing per setting, the number of reported settings.
  std::mutex mutex;
  absl::Status failure;
  std::vector<size_t> left(settings_.size(), runs);
  size_t told = 0;
  RunParallel(options_.threads, settings_.size() * runs, [&](size_t task) {
    if (stop) return;
    DominanceSetting& setting = settings_[task / runs];
    const size_t seed = task % runs / policies_.size(), policy = task % policies_.size();
    const absl::StatusOr<RunMeasurements> measured =
        RunOne(setting, seed + 1, policies_[policy], [&] { return !stop && go_on(); });
    const std::lock_guard<std::mutex> lock(mutex);
    failure.Update(measured.status());
    stop = !failure.ok();
    if (stop) return;
    setting.runs[policy][seed] = *measured;
    --left[task / runs];
    for (; told < settings_.size() && left[told] == 0; ++told) done(told);
  });
  return failure;
}

Rivals BestOf(absl::Span<const RunMeasurements> runs, size_t fcfs) {
  Rivals rivals;
  const double fair_wait = kFairWait * static_cast<double>(runs[fcfs].wait_steps_p99);
  for (size_t i = 1; i < runs.size(); ++i) {
    const auto take = [&](size_t& best) {
      if (best == 0 || runs[i].step_s_mean < runs[best].step_s_mean) best = i;
    };
    take(rivals.best);
    if (static_cast<double>(runs[i].wait_steps_p99) <= fair_wait) take(rivals.best_fair);
  }
  return rivals;
}

nlohmann::ordered_json Dominance::Json(const DominanceSetting& setting) const {
  std::vector<RunMeasurements> means;
  for (const std::vector<RunMeasurements>& seeds : setting.runs) means.push_back(MeanOf(seeds));
  const auto [best, best_fair] = BestOf(means, fcfs_);
  const auto [loss, within] = ExcessOver(setting.runs[0], setting.runs[best_fair]);
  nlohmann::ordered_json json = {{"workload", options_.workloads[static_cast<size_t>(setting.workload)].name},
                                 {"workers", setting.workers},
                                 {"mode", setting.mode},
                                 {"level", setting.level},
                                 {"step_ms", 1e3 * means[0].step_s_mean},
                                 {"idle_fraction", means[0].idle_fraction},
                                 {"best", policies_[best]},
                                 {"step_loss", ExcessOver(setting.runs[0], setting.runs[best]).first},
                                 {"best_fair", policies_[best_fair]},
                                 // As a share of that baseline's step.
                                 {"fair_step_loss", loss},
                                 {"wait_steps_p99", means[0].wait_steps_p99},
                                 {"fcfs_wait_steps_p99", means[fcfs_].wait_steps_p99},
                                 {"wait_steps_max", means[0].wait_steps_max},
                                 {"fcfs_wait_steps_max", means[fcfs_].wait_steps_max}};
  if (within) json["fair_step_loss_within_95"] = *within;
  for (size_t p = 0; p < means.size(); ++p) {
    json["runs"].push_back({{"policy", policies_[p]}});
    json["runs"].back().update(nlohmann::ordered_json(means[p]));
  }
  return json;
}

nlohmann::ordered_json Dominance::Json() const {
  const SimOptions& base = options_.base;
  nlohmann::ordered_json settings = nlohmann::ordered_json::array();
  for (const DominanceSetting& setting : settings_) settings.push_back(Json(setting));
  return {{"candidate", policies_[0]},     {"batch", base.batch},         {"objective", base.objective},
          {"horizon", base.horizon},       {"lookahead", base.lookahead}, {"plan_mode", base.plan_mode},
          {"wait_ratio", base.wait_ratio}, {"warmup", base.warmup},       {"steps", base.steps},
          {"seeds", options_.seeds},       {"settings", settings}};
}

}  // namespace bfio::sim
