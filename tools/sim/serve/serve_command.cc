#include "tools/sim/serve/serve_command.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "common/config/absl_flags.h"
#include "nlohmann/json.hpp"
#include "tools/sim/cells/cell.h"
#include "tools/sim/flags.h"
#include "tools/sim/serve/serve_grid.h"
#include "tools/sim/serve/serve_run.h"

ABSL_DECLARE_FLAG(std::string, trace);
ABSL_DECLARE_FLAG(uint32_t, workers);
ABSL_DECLARE_FLAG(std::string, rule);
ABSL_DECLARE_FLAG(uint32_t, slots);
ABSL_DECLARE_FLAG(uint64_t, seed);
ABSL_DECLARE_FLAG(uint32_t, seeds);
ABSL_DECLARE_FLAG(double, load);
ABSL_DECLARE_FLAG(double, jitter);
ABSL_DECLARE_FLAG(std::string, loads);
ABSL_DECLARE_FLAG(std::string, groups);
ABSL_DECLARE_FLAG(bool, json);
ABSL_FLAG(uint32_t, budget, 2048, "serve: tokens of a rank's step at most, for rules that have a budget");
ABSL_FLAG(
    std::string, cost, "7.5e-3,0.027e-3,220,1.05e-9,4.85e-8",
    "serve: C,A,B0,K1,K2 of a rank's step: C + A max(0, rows - B0) + K1 pairs of prompt tokens + K2 tokens "
    "that decodes attend to, seconds; an 8-billion model per GPU by default");
ABSL_FLAG(std::string, known_cost, "true",
          "serve: the cost of a step by which the rule plans and ranks fill their steps: true, fitted to the "
          "steps as workers do, or fitted_without_k1");
ABSL_FLAG(
    uint32_t, lag, 2,
    "serve: a plan made from the reports of step k is for step k + lag; 2 in a pipelined router, at most 1 "
    "where the group waits for its plan");
ABSL_FLAG(double, ttft_objective, 0,
          "serve: objective of every request for the time to its first token, seconds; 0: none");
ABSL_FLAG(bool, closed, false,
          "serve, serve-grid: a request comes whenever one ends; --load is the share of all slots that the "
          "requests in the system would fill");
ABSL_FLAG(std::string, budgets, "128,256,512,1024,2048,4096,8192",
          "serve-grid: tokens of a rank's step that rules with a budget are run with");
ABSL_FLAG(std::string, against, "",
          "serve-grid: compare --rule with this rule alone, at equal budgets, each a cell; empty: with all "
          "others, each with its best budget in hindsight");

namespace bfio::sim {
namespace {

// Defaults: bfio's rule, an engine's usual slots, and a load below saturation. Other subcommands have these
// flags, too, with other defaults.
constexpr char kDefaultRule[] = "bf_io";
constexpr int64_t kDefaultSlots = 256;
constexpr double kDefaultLoad = 0.7;
// More than any step has; so that it is a whole number in any type.
constexpr double kMostRows = 1e9;
constexpr double kMostWorkers = 1024;
constexpr int64_t kGridRows = 20'000;
constexpr uint64_t kGridRowsSeed = 7;
constexpr double kMostSeeds = 1000;
constexpr double kGridLoads[] = {0.3, 0.5, 0.7, 0.85, 0.95};

std::string RuleFromFlag() {
  return FlagWasGiven("rule") ? absl::GetFlag(FLAGS_rule) : kDefaultRule;
}

absl::StatusOr<BatchCost> CostFromFlag() {
  BFIO_ASSIGN_OR_RETURN(const std::vector<double> values, NumbersOf("cost", absl::GetFlag(FLAGS_cost), ','));
  if (values.size() != 5) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cost=", absl::GetFlag(FLAGS_cost), ": five numbers, C,A,B0,K1,K2"));
  }
  BFIO_RETURN_IF_ERROR(CheckNumber("cost", values[2], 0, kMostRows));
  BatchCost cost;
  cost.c_s = values[0];
  cost.a_s_per_token = values[1];
  cost.b0_tokens = static_cast<int64_t>(values[2]);
  cost.k1_s_per_pair = values[3];
  cost.k2_s_per_token = values[4];
  return cost;
}

absl::StatusOr<KnownCost> KnownCostFromFlag() {
  const std::string name = absl::GetFlag(FLAGS_known_cost);
  if (name == "true") return KnownCost::kTrue;
  if (name == "fitted") return KnownCost::kFitted;
  if (name == "fitted_without_k1") return KnownCost::kFittedWithoutK1;
  return absl::InvalidArgumentError(
      absl::StrCat("--known_cost=", name, ": true, fitted or fitted_without_k1"));
}

void PrintRun(const ServeOptions& options, const std::string& workload, const ServeResult& run) {
  const auto line = [](const char* name, const Latencies& l) {
    return absl::StrFormat("  %-5s mean %9.4f  p50 %9.4f  p99 %9.4f s\n", name, l.mean, l.p50, l.p99);
  };
  std::cout << absl::StrFormat(
      "%s on %s: %d ranks, load %.2f of %.3f requests/s; %.0f s of warm-up, %.0f s counted, %d requests, %d "
      "steps of %.2f ms\n",
      options.rule, workload, options.workers, options.load, run.capacity.requests_per_s, run.warmup_s,
      run.counted_s, run.requests, run.steps, run.step_s_mean * 1e3);
  std::cout << line("TTFT", run.ttft_s) << line("TPOT", run.tpot_s) << line("ITL", run.itl_s)
            << line("E2E", run.e2e_s)
            << absl::StrFormat("  idle %.2f %% (%.2f decodes, %.2f prompts); %.0f tokens/s\n",
                               run.idle_fraction * 100, run.idle_decode_fraction * 100,
                               run.idle_prefill_fraction * 100, run.throughput_tokens_per_s);
  if (run.ttft_met) {
    std::cout << absl::StrFormat("  %.1f %% of the first tokens within %g s\n", *run.ttft_met * 100,
                                 options.ttft_objective_s);
  }
}

// --- the grid ---

absl::StatusOr<std::vector<ServeWorkload>> GridWorkloads() {
  std::vector<ServeWorkload> workloads;
  const std::vector<std::string> paths = absl::StrSplit(absl::GetFlag(FLAGS_trace), ',', absl::SkipEmpty());
  for (const std::string& path : paths) {
    BFIO_ASSIGN_OR_RETURN(Trace trace, ReadTrace(path));
    workloads.push_back({std::filesystem::path(path).stem().string(), std::move(trace)});
  }
  // Without traces the profiles of the same distributions are used.
  std::vector<const char*> profiles = {"code", "reasoning", "long_prompts"};
  if (workloads.empty()) profiles.insert(profiles.begin(), {"conversation", "burstgpt"});
  for (const char* profile : profiles) {
    BFIO_ASSIGN_OR_RETURN(Trace trace, SampleProfile(profile, kGridRows, kGridRowsSeed));
    workloads.push_back({profile, std::move(trace)});
  }
  return workloads;
}

absl::StatusOr<ServeGridOptions> GridFromFlags() {
  ServeGridOptions grid;
  BFIO_ASSIGN_OR_RETURN(grid.workloads, GridWorkloads());
  grid.engines = ServeEngines();
  grid.loads.assign(std::begin(kGridLoads), std::end(kGridLoads));
  grid.groups = {4, 8, 16};
  if (FlagWasGiven("loads")) {
    BFIO_ASSIGN_OR_RETURN(grid.loads, NumbersOf("loads", absl::GetFlag(FLAGS_loads), ','));
  }
  if (FlagWasGiven("groups")) {
    BFIO_ASSIGN_OR_RETURN(auto groups, NumbersOf("groups", absl::GetFlag(FLAGS_groups), ','));
    for (const double group : groups) {
      BFIO_RETURN_IF_ERROR(CheckNumber("groups", group, 1, kMostWorkers));
    }
    grid.groups.assign(groups.begin(), groups.end());
  }
  BFIO_ASSIGN_OR_RETURN(const auto budgets, NumbersOf("budgets", absl::GetFlag(FLAGS_budgets), ','));
  for (const double budget : budgets) {
    BFIO_RETURN_IF_ERROR(CheckNumber("budgets", budget, 1, kMostRows));
  }
  grid.budgets.assign(budgets.begin(), budgets.end());
  grid.against = absl::GetFlag(FLAGS_against);
  BFIO_RETURN_IF_ERROR(CheckNumber("seeds", absl::GetFlag(FLAGS_seeds), 1, kMostSeeds));
  grid.seeds = static_cast<int32_t>(absl::GetFlag(FLAGS_seeds));
  grid.candidate = RuleFromFlag();
  grid.candidate_lag = static_cast<int32_t>(absl::GetFlag(FLAGS_lag));
  grid.jitter = absl::GetFlag(FLAGS_jitter);
  grid.closed = absl::GetFlag(FLAGS_closed);
  grid.threads = ThreadsFromFlags();
  return grid;
}

std::string CellLine(const ServeCell& cell) {
  const ServeMeasurements &ours = cell.candidate, &best = cell.best;
  const std::string equal = cell.least_tpot_at_ttft_s > 0
                                ? absl::StrFormat("%5.2f", ours.tpot_s / cell.least_tpot_at_ttft_s)
                                : "    -";
  return absl::StrFormat(
      "%-24s %-6s %4d %5.2f | %-15s %5d | %5.2f %5.2f %5.2f %5.2f | %5.2f %5.2f %s | %6.2f %6.3f",
      cell.workload.substr(0, 24), cell.engine, cell.workers, cell.load, best.rule, best.budget,
      ours.e2e_s / best.e2e_s, ours.ttft_p50_s / best.ttft_p50_s, ours.ttft_p99_s / best.ttft_p99_s,
      ours.tpot_s / best.tpot_s, ours.ttft_p50_s / cell.least_ttft_p50_s,
      ours.ttft_p99_s / cell.least_ttft_p99_s, equal, ours.idle_prefill_fraction * 100,
      ours.throughput_tokens_per_s / best.throughput_tokens_per_s);
}

// Means of ratios, by number of ranks and load.
class Summary {
 public:
  void Add(const ServeCell& cell) {
    Sums& sums = cells_[{cell.workers, cell.load}];
    const ServeMeasurements &ours = cell.candidate, &best = cell.best;
    ++sums.cells;
    sums.e2e.Add(ours.e2e_s / best.e2e_s);
    sums.longer += ours.e2e_s > best.e2e_s ? 1 : 0;
    sums.ttft.Add(ours.ttft_p50_s / best.ttft_p50_s);
    sums.tail.Add(ours.ttft_p99_s / best.ttft_p99_s);
    sums.long_tails += ours.ttft_p99_s > kLongTail * best.ttft_p99_s ? 1 : 0;
    sums.tpot.Add(ours.tpot_s / best.tpot_s);
    if (cell.least_tpot_at_ttft_s > 0) sums.equal_tpot.Add(ours.tpot_s / cell.least_tpot_at_ttft_s);
    sums.idle.Add(100 * ours.idle_prefill_fraction);
    sums.tokens.Add(ours.throughput_tokens_per_s / best.throughput_tokens_per_s);
    if (!cell.floor) return;
    sums.floor.Add(cell.floor->e2e_s / best.e2e_s);
    sums.above_floor.Add(ours.e2e_s / cell.floor->e2e_s);
  }
  bool any() const { return !cells_.empty(); }
  std::string Text() const {
    std::string text =
        "\nmeans of ratios to the best run of any other rule, chosen in hindsight by E2E; in brackets the "
        "worst cell\n"
        "TPOT=: to the least TPOT of the runs whose TTFT p50 is no higher, where there are any. idle: of the "
        "ranks' time, lost to prompts.\n"
        "floor: an ideally levelled group in which nothing waits and no row is wasted.\n";
    for (const auto& [key, sums] : cells_) {
      absl::StrAppendFormat(
          &text,
          "G %2d, load %4.2f, %2d cells: E2E %.3f (%.3f), %d above 1; TTFT p50 %.2f, p99 %.2f (%.2f), %d "
          "above "
          "%.1f; TPOT %.3f, TPOT= %s; idle %.2f %% (%.2f %%); tokens/s %.3f (%.3f)%s\n",
          key.first, key.second, sums.cells, sums.e2e.mean(), sums.e2e.most, sums.longer, sums.ttft.mean(),
          sums.tail.mean(), sums.tail.most, sums.long_tails, kLongTail, sums.tpot.mean(),
          sums.equal_tpot.count > 0
              ? absl::StrFormat("%.3f in %d cells", sums.equal_tpot.mean(), sums.equal_tpot.count)
              : "-",
          sums.idle.mean(), sums.idle.most, sums.tokens.mean(), sums.tokens.least,
          sums.floor.count > 0
              ? absl::StrFormat("; floor E2E %.3f (%.3f), E2E / floor %.3f (%.3f)", sums.floor.mean(),
                                sums.floor.most, sums.above_floor.mean(), sums.above_floor.most)
              : "");
    }
    return text;
  }

 private:
  // The goal of TTFT p99 in any cell.
  static constexpr double kLongTail = 1.5;

  struct Figure {
    int count = 0;
    double sum = 0;
    double most = -std::numeric_limits<double>::infinity(), least = std::numeric_limits<double>::infinity();
    void Add(double value) {
      ++count;
      sum += value;
      most = std::max(most, value);
      least = std::min(least, value);
    }
    double mean() const { return sum / count; }
  };
  struct Sums {
    int cells = 0, longer = 0, long_tails = 0;
    Figure e2e, ttft, tail, tpot, equal_tpot, idle, tokens, floor, above_floor;
  };
  std::map<std::pair<int32_t, double>, Sums> cells_;
};

}  // namespace

absl::Status RunServeCommand() {
  ServeOptions options;
  options.rule = RuleFromFlag();
  options.workers = static_cast<int32_t>(absl::GetFlag(FLAGS_workers));
  options.slots = FlagWasGiven("slots") ? absl::GetFlag(FLAGS_slots) : kDefaultSlots;
  options.budget = absl::GetFlag(FLAGS_budget);
  options.load = FlagWasGiven("load") ? absl::GetFlag(FLAGS_load) : kDefaultLoad;
  options.lag = static_cast<int32_t>(absl::GetFlag(FLAGS_lag));
  options.jitter = absl::GetFlag(FLAGS_jitter);
  options.ttft_objective_s = absl::GetFlag(FLAGS_ttft_objective);
  options.closed = absl::GetFlag(FLAGS_closed);
  options.seed = absl::GetFlag(FLAGS_seed);
  BFIO_ASSIGN_OR_RETURN(options.cost, CostFromFlag());
  BFIO_ASSIGN_OR_RETURN(options.known_cost, KnownCostFromFlag());
  BFIO_ASSIGN_OR_RETURN(Trace trace, WorkloadFromFlags(1, 0));
  BFIO_ASSIGN_OR_RETURN(ServeResult run, RunServe(options, trace));
  if (absl::GetFlag(FLAGS_json)) {
    std::cout << ServeJson(options, trace.source, run)
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              << std::endl;
  } else {
    PrintRun(options, trace.source, run);
  }
  return absl::OkStatus();
}

absl::Status RunServeGridCommand() {
  BFIO_ASSIGN_OR_RETURN(ServeGridOptions grid, GridFromFlags());
  const bool json = absl::GetFlag(FLAGS_json);
  if (!json) {
    std::cout
        << "                                           | the best other         | ratios to it            | "
           "to the least of any   | prompts'\n"
           "workload                 engine    G  load | rule            budget |   E2E  TTFT   p99  TPOT | "
           " TTFT   p99  TPOT= | idle %  tokens/s"
        << std::endl;
  }
  Summary summary;
  const auto done = [&](const ServeCell& cell) {
    summary.Add(cell);
    std::cout << (json ? ServeCellJson(cell).dump() : CellLine(cell)) << std::endl;
  };
  const absl::Status status = RunServeGrid(grid, done, [] { return !ShutdownSignal::Requested(); });
  if (!json && summary.any()) std::cout << summary.Text() << std::flush;
  return status;
}

}  // namespace bfio::sim
