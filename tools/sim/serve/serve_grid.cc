#include "tools/sim/serve/serve_grid.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/rank/serve_group.h"
#include "tools/sim/serve/serve_rule.h"
#include "tools/sim/serve/serve_run.h"

namespace bfio::sim {
namespace {

// Budget passed to a candidate without a budget, which does not use it.
constexpr int64_t kNoBudget = 2048;

// One rule with one budget.
struct Contender {
  std::string rule;
  int64_t budget = 1;
  int32_t lag = 0;
};

std::vector<Contender> Contenders(const ServeGridOptions& options, const ServeCell& cell) {
  std::vector<Contender> contenders = {{options.candidate, cell.budget, options.candidate_lag}};
  if (!options.against.empty()) {
    contenders.push_back({options.against, cell.budget});
    return contenders;
  }
  for (const ServeRuleInfo& rule : ServeRules()) {
    if (rule.ours || rule.name == options.candidate) continue;
    for (const int64_t budget : options.budgets) contenders.push_back({std::string(rule.name), budget});
  }
  return contenders;
}

absl::StatusOr<ServeMeasurements> MeanMeasurements(const Contender& contender, const ServeGridOptions& grid,
                                                   const ServeWorkload& workload, const ServeEngine& engine,
                                                   const ServeCell& cell) {
  ServeMeasurements mean;
  mean.rule = contender.rule;
  mean.budget = contender.budget;
  for (int32_t seed = 1; seed <= grid.seeds; ++seed) {
    ServeOptions options;
    options.rule = contender.rule;
    options.workers = cell.workers;
    options.slots = engine.slots;
    options.budget = contender.budget;
    options.load = cell.load;
    options.cost.terms = grid.terms;
    options.cost.batch = engine.cost;
    options.lag = contender.lag;
    options.jitter = grid.jitter;
    options.closed = grid.closed;
    options.seed = static_cast<uint64_t>(seed);
    BFIO_ASSIGN_OR_RETURN(const ServeResult run, RunServe(options, workload.trace));
    mean.e2e_s += run.times.e2e_s.mean / grid.seeds;
    mean.ttft_p50_s += run.times.ttft_s.p50 / grid.seeds;
    mean.ttft_p99_s += run.times.ttft_s.p99 / grid.seeds;
    mean.tpot_s += run.times.tpot_s.mean / grid.seeds;
    mean.idle_prefill_fraction += run.idle_prefill_fraction / grid.seeds;
    mean.throughput_tokens_per_s += run.throughput_tokens_per_s / grid.seeds;
  }
  return mean;
}

// The first of `figures` is that of the candidate.
absl::Status Judge(const std::vector<Contender>& contenders,
                   const std::vector<absl::StatusOr<ServeMeasurements>>& figures, ServeCell& cell) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (figures.front().ok()) cell.candidate = *figures.front();
  std::set<std::string> run;
  for (size_t i = 1; i < figures.size(); ++i) {
    if (figures[i].ok()) run.insert(contenders[i].rule);
  }
  for (size_t i = 1; i < figures.size(); ++i) {
    if (run.insert(contenders[i].rule).second) cell.cannot_run.push_back(contenders[i].rule);
  }
  cell.best.e2e_s = cell.least_ttft_p50_s = cell.least_ttft_p99_s = kNone;
  double least_tpot = kNone;
  for (size_t i = 1; i < figures.size(); ++i) {
    if (absl::IsResourceExhausted(figures[i].status())) continue;
    if (!figures[i].ok()) return figures[i].status();
    const ServeMeasurements& other = *figures[i];
    if (other.e2e_s < cell.best.e2e_s) cell.best = other;
    cell.least_ttft_p50_s = std::min(cell.least_ttft_p50_s, other.ttft_p50_s);
    cell.least_ttft_p99_s = std::min(cell.least_ttft_p99_s, other.ttft_p99_s);
    if (other.ttft_p50_s <= cell.candidate.ttft_p50_s) least_tpot = std::min(least_tpot, other.tpot_s);
  }
  if (cell.best.e2e_s == kNone)
    return absl::NotFoundError("all other rules are overloaded in a cell; use lower --loads");
  if (!figures.front().ok()) return figures.front().status();
  cell.least_tpot_at_ttft_s = least_tpot == kNone ? 0 : least_tpot;
  return absl::OkStatus();
}

std::optional<ServeFloor> FloorIn(const ServeGridOptions& options, const ServeWorkload& workload,
                                  const ServeEngine& engine, const ServeCell& cell) {
  if (options.closed) return std::nullopt;
  const LengthMoments moments = MomentsOf(workload.trace);
  const ServeCapacity capacity = CapacityOf(moments, engine.cost, cell.workers, engine.slots);
  return FloorOf(moments, engine.cost, cell.workers, engine.slots, cell.load * capacity.requests_per_s,
                 options.jitter);
}

absl::Status RunCell(const ServeGridOptions& options, const ServeWorkload& workload,
                     const ServeEngine& engine, const std::function<bool()>& go_on, ServeCell& cell) {
  const std::vector<Contender> contenders = Contenders(options, cell);
  std::vector<absl::StatusOr<ServeMeasurements>> figures(contenders.size(), absl::UnknownError("not run"));
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < options.threads; ++i) {
    threads.emplace_back([&] {
      for (size_t k = next++; k < contenders.size(); k = next++) {
        if (!go_on()) return;
        figures[k] = MeanMeasurements(contenders[k], options, workload, engine, cell);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!go_on()) return absl::CancelledError("stopped by a signal");
  cell.floor = FloorIn(options, workload, engine, cell);
  return Judge(contenders, figures, cell);
}

std::string NameOf(const ServeCell& cell) {
  return absl::StrCat(cell.workload, " on ", cell.engine, " with ", cell.workers, " ranks at load ",
                      cell.load);
}

nlohmann::ordered_json FiguresJson(const ServeMeasurements& figures) {
  return {{"rule", figures.rule},
          {"budget", figures.budget},
          {"e2e_s", figures.e2e_s},
          {"ttft_p50_s", figures.ttft_p50_s},
          {"ttft_p99_s", figures.ttft_p99_s},
          {"tpot_s", figures.tpot_s},
          {"idle_prefill_fraction", figures.idle_prefill_fraction},
          {"throughput_tokens_per_s", figures.throughput_tokens_per_s}};
}

ServeEngine Moe() {
  BatchCost cost;
  cost.c_s = 18e-3;
  cost.a_s_per_token = 0.020e-3;
  cost.b0_tokens = 256;
  cost.k1_s_per_pair = 1e-9;
  cost.k2_s_per_token = 6.1e-8;
  return {"moe", cost, 256};
}

}  // namespace

const std::vector<ServeEngine>& ServeEngines() {
  static const auto* const engines = new std::vector<ServeEngine>{
      {"paper", LongContextLlama70B(), 72}, Moe(), {"8b", kEightBillionCost, 256}};
  return *engines;
}

absl::Status RunServeGrid(const ServeGridOptions& options, const std::function<void(const ServeCell&)>& done,
                          const std::function<bool()>& go_on) {
  const std::vector<int64_t> budgets =
      options.against.empty() ? std::vector<int64_t>{kNoBudget} : options.budgets;
  std::vector<std::string> gaps;
  for (const ServeEngine& engine : options.engines) {
    for (const ServeWorkload& workload : options.workloads) {
      for (const int32_t workers : options.groups) {
        for (const double load : options.loads) {
          std::optional<ServeCell> without;
          bool any = false;
          for (const int64_t budget : budgets) {
            ServeCell cell;
            cell.workload = workload.name;
            cell.engine = engine.name;
            cell.workers = workers;
            cell.load = load;
            cell.budget = budget;
            const absl::Status status = RunCell(options, workload, engine, go_on, cell);
            // No other rule keeps up with this budget, so there is nothing to compare with.
            if (!options.against.empty() && absl::IsNotFound(status)) {
              without = cell;
              continue;
            }
            if (!status.ok()) {
              return absl::Status(status.code(), absl::StrCat(NameOf(cell), ": ", status.message()));
            }
            any = true;
            if (!cell.cannot_run.empty()) without = cell;
            done(cell);
          }
          if (!without || (any && !options.against.empty())) continue;
          for (const std::string& rule : without->cannot_run) {
            gaps.push_back(absl::StrCat(rule, " in ", NameOf(*without)));
          }
        }
      }
    }
  }
  if (!gaps.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("overloaded at every budget: ", absl::StrJoin(gaps, "; ")));
  }
  return absl::OkStatus();
}

nlohmann::ordered_json ServeCellJson(const ServeCell& cell) {
  nlohmann::ordered_json json = {{"workload", cell.workload},
                                 {"engine", cell.engine},
                                 {"workers", cell.workers},
                                 {"load", cell.load},
                                 {"candidate", FiguresJson(cell.candidate)},
                                 {"best", FiguresJson(cell.best)},
                                 {"least_ttft_p50_s", cell.least_ttft_p50_s},
                                 {"least_ttft_p99_s", cell.least_ttft_p99_s},
                                 {"least_tpot_at_ttft_s", cell.least_tpot_at_ttft_s},
                                 {"cannot_run", cell.cannot_run}};
  if (cell.floor) {
    json["floor"] = {
        {"e2e_s", cell.floor->e2e_s}, {"ttft_s", cell.floor->ttft_s}, {"tpot_s", cell.floor->tpot_s}};
  }
  return json;
}

}  // namespace bfio::sim
