#include "tools/sim/serve/serve_grid.h"

#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/annotated.h"
#include "common/base/status_macros.h"
#include "tools/sim/rank/shared.h"
#include "tools/sim/serve/serve_rule.h"

namespace bfio::sim {
namespace {

// Budget passed to a candidate without a budget, which does not use it.
constexpr int64_t kNoBudget = 2048;

// The runs of a cell, of the candidate first.
std::vector<ServeOptions> RunsOf(const ServeGridOptions& options, const ServeEngine& engine,
                                 const ServeCell& cell) {
  std::vector<ServeOptions> runs = {options.run};
  runs[0].workers = cell.workers;
  runs[0].slots = engine.slots;
  runs[0].load = cell.load;
  runs[0].cost.batch = engine.cost;
  runs[0].budget = cell.budget;
  const auto add = [&](absl::string_view rule, int64_t budget) {
    ServeOptions& run = runs.emplace_back(runs[0]);
    run.rule = std::string(rule);
    run.budget = budget;
    run.lag = 0;
    run.fitted_cost = false;
  };
  if (!options.against.empty()) add(options.against, cell.budget);
  for (const ServeRuleInfo& rule : ServeRules()) {
    if (!options.against.empty() || rule.ours() || rule.name == options.run.rule) continue;
    for (const int64_t budget : options.budgets) add(rule.name, budget);
  }
  return runs;
}

absl::StatusOr<ServeMeasurements> MeanMeasurements(ServeOptions options, int32_t seeds, const Trace& trace) {
  ServeMeasurements mean{.rule = options.rule, .budget = options.budget};
  for (options.seed = 1; std::cmp_less_equal(options.seed, seeds); ++options.seed) {
    BFIO_ASSIGN_OR_RETURN(const ServeResult run, RunServe(options, trace));
    mean.e2e_s += run.times.e2e_s.mean / seeds;
    mean.ttft_p50_s += run.times.ttft_s.p50 / seeds;
    mean.ttft_p99_s += run.times.ttft_s.p99 / seeds;
    mean.tpot_s += run.times.tpot_s.mean / seeds;
    mean.idle_prefill_fraction += run.idle_prefill_fraction / seeds;
    mean.throughput_tokens_per_s += run.throughput_tokens_per_s / seeds;
  }
  return mean;
}

absl::Status Judge(const std::vector<ServeOptions>& runs,
                   const std::vector<absl::StatusOr<ServeMeasurements>>& figures, ServeCell& cell) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (figures.front().ok()) cell.candidate = *figures.front();
  std::set<std::string> ran;
  cell.best.e2e_s = kNone;
  for (size_t i = 1; i < figures.size(); ++i) {
    if (absl::IsResourceExhausted(figures[i].status())) continue;
    if (!figures[i].ok()) return figures[i].status();
    ran.insert(runs[i].rule);
    if (figures[i]->e2e_s < cell.best.e2e_s) cell.best = *figures[i];
  }
  for (size_t i = 1; i < figures.size(); ++i) {
    if (ran.insert(runs[i].rule).second) cell.cannot_run.push_back(runs[i].rule);
  }
  if (cell.best.e2e_s == kNone)
    return absl::NotFoundError("all other rules are overloaded in a cell; use lower --loads");
  return figures.front().status();
}

absl::Status RunCell(const ServeGridOptions& options, const ServeWorkload& workload,
                     const ServeEngine& engine, const std::function<bool()>& go_on, ServeCell& cell) {
  const std::vector<ServeOptions> runs = RunsOf(options, engine, cell);
  std::vector<absl::StatusOr<ServeMeasurements>> figures(runs.size(), absl::UnknownError("not run"));
  RunParallel(options.threads, runs.size(), [&](size_t i) {
    if (go_on()) figures[i] = MeanMeasurements(runs[i], options.seeds, workload.trace);
  });
  if (!go_on()) return absl::CancelledError("stopped by a signal");
  if (!options.run.closed) {
    const LengthMoments moments = MomentsOf(workload.trace);
    const ServeCapacity capacity = CapacityOf(moments, engine.cost, cell.workers, engine.slots);
    cell.floor = FloorOf(moments, engine.cost, cell.workers, engine.slots,
                         cell.load * capacity.requests_per_s, options.run.jitter);
  }
  return Judge(runs, figures, cell);
}

std::string NameOf(const ServeCell& cell) {
  return absl::StrCat(cell.workload, " on ", cell.engine, " with ", cell.workers, " ranks at load ",
                      cell.load);
}

}  // namespace

BFIO_JSON_OF(ServeMeasurements, rule, budget, e2e_s, ttft_p50_s, ttft_p99_s, tpot_s, idle_prefill_fraction,
             throughput_tokens_per_s)
BFIO_JSON_OF(ServeFloor, e2e_s, ttft_s, tpot_s)
BFIO_JSON_OF(ServeCell, workload, engine, workers, load, candidate, best, cannot_run)

const std::vector<ServeEngine>& ServeEngines() {
  static const auto* const engines = new std::vector<ServeEngine>{{"paper", LongContextLlama70B(), 72},
                                                                  {"moe",
                                                                   {.c_s = 18e-3,
                                                                    .a_s_per_token = 0.020e-3,
                                                                    .b0_tokens = 256,
                                                                    .k1_s_per_pair = 1e-9,
                                                                    .k2_s_per_token = 6.1e-8},
                                                                   256},
                                                                  {"8b", kEightBillionCost, 256}};
  return *engines;
}

absl::Status RunServeGrid(const ServeGridOptions& options, const std::function<void(const ServeCell&)>& done,
                          const std::function<bool()>& go_on) {
  const std::vector<int64_t> budgets =
      options.against.empty() ? std::vector<int64_t>{kNoBudget} : options.budgets;
  std::vector<std::string> gaps;
  // The cells of all budgets.
  const auto run_cells = [&](ServeCell cell, const ServeWorkload& workload, const ServeEngine& engine) {
    std::optional<ServeCell> without;
    bool any = false;
    for (const int64_t budget : budgets) {
      ServeCell of = cell;
      of.budget = budget;
      const absl::Status status = RunCell(options, workload, engine, go_on, of);
      // No other rule keeps up with this budget, so there is nothing to compare with.
      const bool none = !options.against.empty() && absl::IsNotFound(status);
      if (none || !of.cannot_run.empty()) without = of;
      if (none) continue;
      BFIO_RETURN_IF_ERROR(Annotated(NameOf(of), status));
      any = true;
      done(of);
    }
    if (!without || (any && !options.against.empty())) return absl::OkStatus();
    for (const std::string& rule : without->cannot_run)
      gaps.push_back(absl::StrCat(rule, " in ", NameOf(*without)));
    return absl::OkStatus();
  };
  for (const ServeEngine& engine : options.engines) {
    for (const ServeWorkload& workload : options.workloads) {
      for (const int32_t workers : options.groups) {
        for (const double load : options.loads) {
          BFIO_RETURN_IF_ERROR(run_cells({workload.name, engine.name, workers, load}, workload, engine));
        }
      }
    }
  }
  if (gaps.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("overloaded at every budget: ", absl::StrJoin(gaps, "; ")));
}

nlohmann::ordered_json ServeCellJson(const ServeCell& cell) {
  nlohmann::ordered_json json = cell;
  if (cell.floor) json["floor"] = *cell.floor;
  return json;
}

}  // namespace bfio::sim
