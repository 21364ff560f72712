#include "tools/sim/dominance/dominance.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "router/core/policy/policy.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {
namespace {

// Requests drawn from a profile; longer simulations repeat them.
constexpr int64_t kProfileRequests = 20'000;

// The maximum factor by which a low load lengthens a run.
constexpr double kMostStretch = 4;

int64_t StepsFor(const DominanceCell& cell, int64_t steps) {
  const double divisor = cell.workers >= 256 ? 4 : cell.workers >= 64 ? 2 : 1;
  const double stretch =
      cell.mode == "arrivals" ? std::clamp(kSaturationLoad / cell.level, 1.0, kMostStretch) : 1;
  return std::max<int64_t>(1, std::llround(static_cast<double>(steps) * stretch / divisor));
}

int64_t LongestOutput(const Trace& trace) {
  int64_t longest = 0;
  for (const TraceRequest& request : trace.requests) longest = std::max(longest, request.output_tokens);
  return longest;
}

// The mean reservation of a request: its prompt plus the longest output, as in the simulator.
double MeanReserve(const Trace& trace) {
  double prompts = 0;
  for (const TraceRequest& request : trace.requests) prompts += static_cast<double>(request.prompt_tokens);
  return prompts / static_cast<double>(trace.requests.size()) + static_cast<double>(LongestOutput(trace));
}

absl::Status CheckPolicies(const std::vector<std::string>& policies, const SimOptions& base) {
  core::PolicyOptions options;
  options.horizon = base.horizon;
  options.objective = base.objective;
  options.wait_ratio = base.wait_ratio;
  for (const std::string& policy : policies) {
    if (const auto made = core::MakePolicy(policy, options); !made.ok()) return made.status();
  }
  return absl::OkStatus();
}

absl::Status CheckLists(const DominanceOptions& options) {
  const auto empty = [](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("dominance needs at least one ", what));
  };
  if (options.workloads.empty()) return empty("workload");
  if (options.groups.empty()) return empty("number of workers (--groups)");
  if (options.loads.empty() && options.depths.empty()) return empty("level (--loads or --depths)");
  if (options.seeds < 1) return empty("seed (--seeds)");
  if (options.threads < 1) return empty("thread (--threads)");
  for (double level : options.loads) {
    if (!(level > 0))
      return absl::InvalidArgumentError(absl::StrCat("--loads: ", level, " must be positive"));
  }
  for (double level : options.depths) {
    if (!(level > 0))
      return absl::InvalidArgumentError(absl::StrCat("--depths: ", level, " must be positive"));
  }
  return absl::OkStatus();
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
  add("bursts").bursts = true;
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
  result.fcfs_ = static_cast<int32_t>(fcfs - result.policies_.begin());
  if (fcfs == result.policies_.end()) result.policies_.push_back("fcfs");
  if (result.policies_.size() < 2) {
    return absl::InvalidArgumentError("dominance: --policy must have a baseline other than --candidate");
  }
  BFIO_RETURN_IF_ERROR(CheckPolicies(result.policies_, result.options_.base));
  BFIO_RETURN_IF_ERROR(result.PrepareTraces());
  result.MakeCells();
  for (const DominanceCell& cell : result.cells_) {
    BFIO_RETURN_IF_ERROR(Validate(result.OptionsOf(cell, "fcfs")));
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
        trace = workload.bursts ? WithBurstArrivals(*trace, seed) : WithPoissonArrivals(*trace, seed);
      }
      seeds.push_back(*std::move(trace));
    }
  }
  return absl::OkStatus();
}

void Dominance::MakeCells() {
  for (int32_t w = 0; w < static_cast<int32_t>(options_.workloads.size()); ++w) {
    for (int32_t workers : options_.groups) {
      const auto add = [&](const char* mode, double level) {
        for (uint64_t seed = 1; seed <= static_cast<uint64_t>(options_.seeds); ++seed) {
          DominanceCell cell{w, workers, mode, level, 0, seed, {}};
          const double free = MeanFreeSlots(PreparedTrace(cell), workers, BatchOf(cell));
          if (cell.mode == "overload") cell.reveal = std::max<int64_t>(1, std::llround(level * free));
          cell.runs.resize(policies_.size());
          cells_.push_back(std::move(cell));
        }
      };
      for (double load : options_.loads) add("arrivals", load);
      for (double depth : options_.depths) add("overload", depth);
    }
  }
}

const Trace& Dominance::PreparedTrace(const DominanceCell& cell) const {
  return traces_[static_cast<size_t>(cell.workload)][cell.seed - 1];
}

int32_t Dominance::BatchOf(const DominanceCell& cell) const {
  const int32_t batch = options_.workloads[static_cast<size_t>(cell.workload)].batch;
  return batch > 0 ? batch : options_.base.batch;
}

SimOptions Dominance::OptionsOf(const DominanceCell& cell, const std::string& policy) const {
  SimOptions result = options_.base;
  const DominanceWorkload& workload = options_.workloads[static_cast<size_t>(cell.workload)];
  result.batch = BatchOf(cell);
  result.classes = workload.classes;
  result.tenants = workload.tenants;
  if (workload.kv_share > 0) {
    result.kv_tokens = std::llround(workload.kv_share * result.batch * MeanReserve(PreparedTrace(cell)));
  }
  result.policy = policy;
  result.workers = cell.workers;
  result.mode = cell.mode;
  result.seed = cell.seed;
  result.steps = StepsFor(cell, result.steps);
  if (cell.mode == "overload") {
    result.reveal = cell.reveal;
    return result;
  }
  const Trace& trace = PreparedTrace(cell);
  const double output = MeanOutputTokens(trace);
  result.warmup = std::max({result.warmup, LongestOutput(trace), std::lround(kWarmupOutputs * output)});
  result.steps = std::max<int64_t>(result.steps, std::lround(kCountedOutputs * output));
  result.load = cell.level / kSaturationLoad *
                FullSlotRequestRate(trace, cell.workers, result.batch, result.cost) / ArrivalRate(trace);
  return result;
}

absl::StatusOr<RunMeasurements> Dominance::RunOne(const DominanceCell& cell, const std::string& policy,
                                                  const std::function<bool()>& go_on) const {
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<Simulation> simulation,
                        Simulation::Create(OptionsOf(cell, policy), PreparedTrace(cell)));
  const absl::StatusOr<nlohmann::ordered_json> run =
      simulation->Run([&](int64_t done) { return done % 64 != 0 || go_on(); });
  if (!run.ok()) return run.status();
  RunMeasurements measured;
  measured.steps = run->at("steps");
  measured.step_s_mean = run->at("step_s_mean");
  measured.idle_fraction = run->at("idle_fraction");
  measured.throughput_tokens_per_s = run->at("throughput_tokens_per_s");
  measured.wait_steps_p50 = run->at("wait_steps_p50");
  measured.wait_steps_p99 = run->at("wait_steps_p99");
  measured.wait_steps_max = run->at("wait_steps_max");
  return measured;
}

absl::Status Dominance::Run(const std::function<void(const DominanceCell& cell, size_t index)>& done,
                            const std::function<bool()>& go_on) {
  const size_t policies = policies_.size(), runs = cells_.size() * policies;
  std::atomic<size_t> next = 0;
  std::atomic<bool> stop = false;
  // Guarded by the mutex: the first failure, the runs missing per cell, the number of reported cells.
  std::mutex mutex;
  absl::Status failure;
  std::vector<size_t> left(cells_.size(), policies);
  size_t told = 0;
  const auto work = [&] {
    for (size_t task = next++; task < runs && !stop; task = next++) {
      const size_t index = task / policies, policy = task % policies;
      const absl::StatusOr<RunMeasurements> measured =
          RunOne(cells_[index], policies_[policy], [&] { return !stop && go_on(); });
      const std::lock_guard<std::mutex> lock(mutex);
      if (!measured.ok()) {
        failure.Update(measured.status());
        stop = true;
        return;
      }
      cells_[index].runs[policy] = *measured;
      --left[index];
      for (; told < cells_.size() && left[told] == 0; ++told) done(cells_[told], told);
    }
  };
  std::vector<std::thread> threads;
  for (int32_t t = 1; t < options_.threads; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return failure;
}

Verdict Dominance::Judge(const DominanceCell& cell) const {
  Verdict verdict;
  const RunMeasurements &ours = cell.runs[0], &fcfs = cell.runs[static_cast<size_t>(fcfs_)];
  const auto above = [](const RunMeasurements& run, int64_t reference) {
    return static_cast<double>(run.wait_steps_p99) > kWaitLossAbove * static_cast<double>(reference);
  };
  verdict.wait_p99 = ours.wait_steps_p99;
  verdict.fcfs_wait_p99 = fcfs.wait_steps_p99;
  for (int32_t i = 1; i < static_cast<int32_t>(cell.runs.size()); ++i) {
    const RunMeasurements& run = cell.runs[static_cast<size_t>(i)];
    const auto better = [&](int32_t best) {
      return best == 0 || run.step_s_mean < cell.runs[static_cast<size_t>(best)].step_s_mean;
    };
    if (better(verdict.best)) verdict.best = i;
    if (!above(run, fcfs.wait_steps_p99) && better(verdict.best_fair)) verdict.best_fair = i;
  }
  verdict.step_ratio = ours.step_s_mean / cell.runs[static_cast<size_t>(verdict.best)].step_s_mean;
  verdict.fair_step_ratio = ours.step_s_mean / cell.runs[static_cast<size_t>(verdict.best_fair)].step_s_mean;
  verdict.step_loss = verdict.step_ratio > kStepLossAbove;
  verdict.fair_step_loss = verdict.fair_step_ratio > kStepLossAbove;
  verdict.wait_loss = above(ours, fcfs.wait_steps_p99);
  return verdict;
}

}  // namespace bfio::sim
