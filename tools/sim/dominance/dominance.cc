#include "tools/sim/dominance/dominance.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "router/core/policy/policy.h"
#include "tools/sim/rank/shared.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {

BFIO_JSON_OF(RunMeasurements, steps, step_s_mean, idle_fraction, throughput_tokens_per_s, wait_steps_p50,
             wait_steps_p99, wait_steps_max)

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
  for (const double level : options.loads) BFIO_RETURN_IF_ERROR(CheckBounds({{"loads", level, 1e-9, 1e9}}));
  for (const double level : options.depths) BFIO_RETURN_IF_ERROR(CheckBounds({{"depths", level, 1e-9, 1e9}}));
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
  result.fcfs_ = static_cast<int32_t>(fcfs - result.policies_.begin());
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
        trace = WithArrivals(*trace, seed, workload.burst);
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
  BFIO_ASSIGN_OR_RETURN(const nlohmann::ordered_json run,
                        simulation->Run([&](int64_t done) { return done % 64 != 0 || go_on(); }));
  return run.get<RunMeasurements>();
}

absl::Status Dominance::Run(const std::function<void(const DominanceCell& cell, size_t index)>& done,
                            const std::function<bool()>& go_on) {
  const size_t policies = policies_.size();
  std::atomic<bool> stop = false;
  // Guarded by the mutex: the first failure, the runs missing per cell, the number of reported cells.
  std::mutex mutex;
  absl::Status failure;
  std::vector<size_t> left(cells_.size(), policies);
  size_t told = 0;
  RunParallel(options_.threads, cells_.size() * policies, [&](size_t task) {
    if (stop) return;
    const size_t index = task / policies, policy = task % policies;
    const absl::StatusOr<RunMeasurements> measured =
        RunOne(cells_[index], policies_[policy], [&] { return !stop && go_on(); });
    const std::lock_guard<std::mutex> lock(mutex);
    failure.Update(measured.status());
    stop = !failure.ok();
    if (stop) return;
    cells_[index].runs[policy] = *measured;
    --left[index];
    for (; told < cells_.size() && left[told] == 0; ++told) done(cells_[told], told);
  });
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

struct Losses {
  int64_t cells = 0, lost = 0, step_losses = 0, fair_step_losses = 0, wait_losses = 0;

  void Add(const Verdict& verdict) {
    ++cells;
    lost += verdict.step_loss || verdict.wait_loss;
    step_losses += verdict.step_loss;
    fair_step_losses += verdict.fair_step_loss;
    wait_losses += verdict.wait_loss;
  }
};
BFIO_JSON_OF(Losses, cells, lost, step_losses, fair_step_losses, wait_losses)

namespace {

// Quantiles of Student's t with 1, 2, ... degrees of freedom: 95 % lie below, and 95 % within +-.
constexpr double kStudentBelow[] = {6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83};
constexpr double kStudentWithin[] = {12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26};

double StudentPoint(absl::Span<const double> points, size_t seeds) {
  return points[std::min(seeds - 1, points.size()) - 1];
}

// Relative excess of the candidate's step time over that of baseline `run`: the mean over a setting's seeds,
// and its standard error, which is undefined for one seed.
struct Excess {
  double mean = 0;
  std::optional<double> error;
};
Excess ExcessOver(absl::Span<const DominanceCell> seeds, int32_t run) {
  double sum = 0, squares = 0;
  for (const DominanceCell& cell : seeds) {
    const double excess = cell.runs[0].step_s_mean / cell.runs[static_cast<size_t>(run)].step_s_mean - 1;
    sum += excess;
    squares += excess * excess;
  }
  const double n = static_cast<double>(seeds.size()), mean = sum / n;
  if (seeds.size() < 2) return {mean, std::nullopt};
  return {mean, std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1))};
}

// The mean over the seeds of one setting: rounded p99 waits, and the longest wait of any seed.
DominanceCell SeedMean(absl::Span<const DominanceCell> seeds) {
  const auto count = static_cast<double>(seeds.size());
  DominanceCell mean = seeds[0];
  for (size_t p = 0; p < mean.runs.size(); ++p) {
    double step_s = 0, wait = 0;
    for (const DominanceCell& cell : seeds) {
      step_s += cell.runs[p].step_s_mean;
      wait += static_cast<double>(cell.runs[p].wait_steps_p99);
      mean.runs[p].wait_steps_max = std::max(mean.runs[p].wait_steps_max, cell.runs[p].wait_steps_max);
    }
    mean.runs[p].step_s_mean = step_s / count;
    mean.runs[p].wait_steps_p99 = static_cast<int64_t>(wait / count + 0.5);
  }
  return mean;
}

}  // namespace

nlohmann::ordered_json DominanceCellJson(const Dominance& dominance, const DominanceCell& cell) {
  const Verdict verdict = dominance.Judge(cell);
  const auto name = [&](int32_t run) { return dominance.policies()[static_cast<size_t>(run)]; };
  nlohmann::ordered_json json = {
      {"workload", dominance.options().workloads[static_cast<size_t>(cell.workload)].name},
      {"workers", cell.workers},
      {"mode", cell.mode},
      {cell.mode == "arrivals" ? "load" : "depth", cell.level},
      {"seed", cell.seed},
      {"step_s_mean", cell.runs[0].step_s_mean},
      {"idle_fraction", cell.runs[0].idle_fraction},
      {"best_baseline", name(verdict.best)},
      {"step_ratio", verdict.step_ratio},
      {"best_fair_baseline", name(verdict.best_fair)},
      {"fair_step_ratio", verdict.fair_step_ratio},
      {"wait_steps_p99", verdict.wait_p99},
      {"fcfs_wait_steps_p99", verdict.fcfs_wait_p99},
      {"step_loss", verdict.step_loss},
      {"fair_step_loss", verdict.fair_step_loss},
      {"wait_loss", verdict.wait_loss}};
  if (cell.mode == "overload") json["reveal"] = cell.reveal;
  for (size_t p = 0; p < cell.runs.size(); ++p) {
    json["runs"].push_back({{"policy", dominance.policies()[p]}});
    json["runs"].back().update(nlohmann::ordered_json(cell.runs[p]));
  }
  return json;
}

nlohmann::ordered_json DominanceJson(const Dominance& dominance) {
  const SimOptions& base = dominance.options().base;
  const auto seeds = static_cast<size_t>(dominance.options().seeds);
  Losses by_cell, by_mean;
  // Losses of means that are larger than the spread over the seeds explains.
  int64_t clear = 0;
  nlohmann::ordered_json settings = nlohmann::ordered_json::array(), cells = settings;
  for (const DominanceCell& cell : dominance.cells()) {
    by_cell.Add(dominance.Judge(cell));
    cells.push_back(DominanceCellJson(dominance, cell));
  }
  // Cells of the same setting are adjacent; their measurements are averaged before the verdict.
  for (size_t first = 0; first < dominance.cells().size(); first += seeds) {
    const auto of = absl::MakeConstSpan(dominance.cells()).subspan(first, seeds);
    const DominanceCell mean = SeedMean(of);
    const Verdict verdict = dominance.Judge(mean);
    by_mean.Add(verdict);
    const Excess excess = ExcessOver(of, verdict.best), fair = ExcessOver(of, verdict.best_fair);
    clear +=
        verdict.step_loss && excess.error && excess.mean > StudentPoint(kStudentBelow, seeds) * *excess.error;
    // The loss against the best fair baseline as a share of its step.
    settings.push_back(
        {{"workload", dominance.options().workloads[static_cast<size_t>(mean.workload)].name},
         {"workers", mean.workers},
         {"mode", mean.mode},
         {"level", mean.level},
         {"step_ms", 1e3 * mean.runs[0].step_s_mean},
         {"best_fair", dominance.policies()[static_cast<size_t>(verdict.best_fair)]},
         {"fair_step_loss", fair.mean},
         {"wait_steps_p99", verdict.wait_p99},
         {"fcfs_wait_steps_p99", verdict.fcfs_wait_p99},
         {"wait_steps_max", mean.runs[0].wait_steps_max},
         {"fcfs_wait_steps_max", mean.runs[static_cast<size_t>(dominance.fcfs())].wait_steps_max}});
    if (fair.error)
      settings.back()["fair_step_loss_within_95"] = StudentPoint(kStudentWithin, seeds) * *fair.error;
  }
  nlohmann::ordered_json json = {{"candidate", dominance.policies()[0]},
                                 {"batch", base.batch},
                                 {"objective", base.objective},
                                 {"horizon", base.horizon},
                                 {"lookahead", base.lookahead},
                                 {"plan_mode", base.plan_mode},
                                 {"wait_ratio", base.wait_ratio},
                                 {"warmup", base.warmup},
                                 {"steps", base.steps},
                                 {"seeds", seeds},
                                 {"by_cell", by_cell},
                                 {"by_seed_mean", by_mean},
                                 {"settings", settings},
                                 {"cells", cells}};
  json["by_seed_mean"]["clear_step_losses"] = clear;
  return json;
}

}  // namespace bfio::sim
