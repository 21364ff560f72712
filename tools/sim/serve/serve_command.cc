#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/commands.h"
#include "tools/sim/serve/serve_grid.h"
#include "tools/sim/serve/serve_run.h"

namespace bfio::sim {
namespace {

// The lag of a pipelined router.
constexpr int32_t kDefaultLag = 2;
constexpr int64_t kGridRows = 20'000;
constexpr uint64_t kGridRowsSeed = 7;

absl::StatusOr<BatchCost> CostOf(const std::vector<double>& numbers) {
  if (numbers.size() < 5 || numbers.size() > 6 || (numbers.size() == 6 && numbers[5] < 1)) {
    return absl::InvalidArgumentError(
        "--cost must be C,A,B0,K1,K2 or C,A,B0,K1,K2,GRANULE, with GRANULE at least 1");
  }
  BatchCost cost;
  cost.c_s = numbers[0];
  cost.a_s_per_token = numbers[1];
  cost.b0_tokens = static_cast<int64_t>(numbers[2]);
  cost.k1_s_per_pair = numbers[3];
  cost.k2_s_per_token = numbers[4];
  if (numbers.size() == 6) cost.granule_tokens = static_cast<int64_t>(numbers[5]);
  return cost;
}

// --padded without a value leaves the largest captured size as it is.
void AddPadded(OptionTable& table, GroupTerms& terms) {
  table.Insert({"padded", Option::Type::kBool, "false", "",
                "every rank computes as many rows as the rank with most, as engines with expert parallelism "
                "do; =S: as long as no rank has more than S rows (the largest captured CUDA graph, 512)",
                [&terms](const std::string& text) {
                  int64_t rows = 0;
                  if (absl::SimpleAtoi(text, &rows) && rows > 1) {
                    terms.captured_rows = rows;
                    terms.padded = true;
                    return absl::OkStatus();
                  }
                  if (absl::SimpleAtob(text, &terms.padded)) return absl::OkStatus();
                  return absl::InvalidArgumentError("must be true, false or a number of rows above 1");
                }});
}

// The options that both subcommands have.
void AddServeOptions(OptionTable& table, std::string& rule, int32_t& lag, double& jitter, bool& closed,
                     GroupTerms& terms, bool& json) {
  AddPadded(table, terms);
  table.Add("prompt_price", &terms.prompt_s, Within(0, 1),
            "seconds that a step takes longer on all ranks if any rank computes prompt tokens (piecewise "
            "instead of full CUDA graphs)");
  table.Add("eager_price", &terms.eager_s, Within(0, 1),
            "seconds that a step takes longer on all ranks if any rank has more than S rows (--padded=S)");
  table.Add("rule", &rule, "rule that places requests and prompts; bfio_sim --help lists the rules of serve");
  table.Add("lag", &lag,
            "steps from the reports that a plan of bfio is made from to the step that it applies to: 2 for a "
            "pipelined router, 0 or 1 for lockstep; engines' own rules decide when a step begins");
  table.Add("jitter", &jitter,
            "standard deviation of the logarithm of a random factor on each rank's local time");
  table.Add("closed", &closed,
            "closed loop: a request arrives whenever one ends, and --load is the number of requests in the "
            "system as a share of all slots");
  AddJson(table, json);
}

void PrintRun(const ServeOptions& options, const std::string& workload, const ServeResult& run) {
  const auto line = [](const char* name, const Latencies& l) {
    return absl::StrFormat("  %-5s mean %9.4f  p50 %9.4f  p99 %9.4f s\n", name, l.mean, l.p50, l.p99);
  };
  std::cout << absl::StrFormat(
      "%s on %s: %d ranks, load %.2f of %.3f requests/s; %.0f s of warm-up, %.0f s counted, %d requests, %d "
      "steps of %.2f ms\n",
      options.rule, workload, options.workers, options.load, run.capacity.requests_per_s, run.warmup_s,
      run.counted_s, run.times.requests, run.steps, run.step_s_mean * 1e3);
  std::cout << line("TTFT", run.times.ttft_s) << line("TPOT", run.times.tpot_s) << line("ITL", run.itl_s)
            << line("E2E", run.times.e2e_s)
            << absl::StrFormat("  idle %.2f %% (%.2f %% by decodes, %.2f %% by prompts); %.0f tokens/s\n",
                               run.idle_fraction * 100, run.idle_decode_fraction * 100,
                               run.idle_prefill_fraction * 100, run.throughput_tokens_per_s);
  if (run.ttft_met) {
    std::cout << absl::StrFormat("  TTFT objective met by %.1f %% of the requests (%g s)\n",
                                 *run.ttft_met * 100, options.ttft_objective_s);
  }
}

// --- the grid ---

absl::StatusOr<std::vector<ServeWorkload>> GridWorkloads(const std::vector<std::string>& paths) {
  std::vector<ServeWorkload> workloads;
  for (const std::string& path : paths) {
    BFIO_ASSIGN_OR_RETURN(Trace trace, ReadTrace(path));
    workloads.push_back({std::filesystem::path(path).stem().string(), std::move(trace)});
  }
  // Profiles with the same distributions replace the traces if none are given.
  std::vector<const char*> profiles = {"code", "reasoning", "long_prompts"};
  if (workloads.empty()) profiles.insert(profiles.begin(), {"conversation", "burstgpt"});
  for (const char* profile : profiles) {
    BFIO_ASSIGN_OR_RETURN(Trace trace, SampleProfile(profile, kGridRows, kGridRowsSeed));
    workloads.push_back({profile, std::move(trace)});
  }
  return workloads;
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
        "\nMeans over cells of the ratio to the best run of all other rules (the lowest E2E, chosen in "
        "hindsight); worst cell in parentheses.\n"
        "TPOT=: ratio to the lowest TPOT of the runs whose TTFT p50 is not higher, if there are any. idle: "
        "share of the ranks' time lost to prompts.\n"
        "floor: lower bound, of a perfectly balanced group in which no request waits and no row is wasted.\n";
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
  // Target in every cell: TTFT p99 at most this multiple of the best other rule's.
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

absl::Status RunServeCommand(const ReadOptions& read) {
  ServeOptions options;
  options.workers = 16;
  options.lag = kDefaultLag;
  const BatchCost& of = kEightBillionCost;
  std::vector<double> cost = {of.c_s, of.a_s_per_token, static_cast<double>(of.b0_tokens), of.k1_s_per_pair,
                              of.k2_s_per_token};
  WorkloadOptions workload;
  bool json = false;
  OptionTable table;
  AddServeOptions(table, options.rule, options.lag, options.jitter, options.closed, options.cost.terms, json);
  AddWorkload(table, workload);
  table.Add("workers", &options.workers, "number of ranks that meet in one barrier");
  table.Add("slots", &options.slots, "slots per rank (max_num_seqs)");
  table.Add("budget", &options.budget,
            "token budget of a step per rank (max_num_batched_tokens), for rules that have one");
  table.Add("load", &options.load, "arrival rate as a share of the capacity of a perfectly balanced group");
  table.Add("ttft_objective", &options.ttft_objective_s,
            "objective for the time to first token of every request, in seconds; 0: none");
  table.Add("tokens_per_step", &options.tokens_per_step,
            "tokens that a decode generates per step on average (speculative decoding), with as many rows; "
            "--load remains that of one token per step");
  table.Add("seed", &options.seed, "seed of arrivals and step times");
  AddNumbers(
      table, "cost", &cost, Within(0, 1e9),
      "step time of a rank in seconds, C + A max(0, rows - B0) + K1 pairs of prompt tokens + K2 tokens that "
      "decodes attend to, given as C,A,B0,K1,K2; a sixth number rounds rows up to a multiple of it; the "
      "default is an 8-billion-parameter model per GPU");
  table.AddChoice(
      "known_cost", &options.known_cost,
      std::vector<std::pair<std::string, KnownCost>>{{"true", KnownCost::kTrue},
                                                     {"fitted", KnownCost::kFitted},
                                                     {"fitted_without_k1", KnownCost::kFittedWithoutK1}},
      "step cost that the rule plans with and ranks fill their steps by: true, fitted (to the measured "
      "steps, as workers do) or fitted_without_k1");
  read(table);
  BFIO_ASSIGN_OR_RETURN(options.cost.batch, CostOf(cost));
  BFIO_ASSIGN_OR_RETURN(const Trace trace, ReadWorkload(workload, 1, 0));
  BFIO_ASSIGN_OR_RETURN(const ServeResult run, RunServe(options, trace));
  if (json) {
    PrintJson(ServeJson(options, trace.source, run));
  } else {
    PrintRun(options, trace.source, run);
  }
  return absl::OkStatus();
}

absl::Status RunServeGridCommand(const ReadOptions& read) {
  ServeGridOptions grid;
  grid.engines = ServeEngines();
  grid.loads = {0.3, 0.5, 0.7, 0.85, 0.95};
  grid.groups = {4, 8, 16};
  std::vector<std::string> traces;
  int32_t threads = 0;
  bool json = false;
  OptionTable table;
  AddServeOptions(table, grid.candidate, grid.candidate_lag, grid.jitter, grid.closed, grid.terms, json);
  table.Add("trace", &traces,
            "traces, separated by commas, besides the profiles code, reasoning and long_prompts; default: "
            "the profiles conversation and burstgpt");
  AddNumbers(table, "groups", &grid.groups, Within(1, 1024), "numbers of ranks, separated by commas");
  AddNumbers(table, "loads", &grid.loads, Within(1e-9, 10), "loads as of serve --load, separated by commas");
  AddNumbers(table, "budgets", &grid.budgets, Within(1, 1e9),
             "token budgets to try for rules that have a budget, separated by commas");
  table.Add("against", &grid.against,
            "compare --rule with this rule only, at equal budgets, one cell per budget; empty: with all "
            "other rules, each at its best budget in hindsight");
  table.Add("seeds", &grid.seeds, Within(1, 1000), "number of seeds, from 1 up");
  AddThreads(table, threads);
  read(table);
  grid.threads = NumThreads(threads);
  BFIO_ASSIGN_OR_RETURN(grid.workloads, GridWorkloads(traces));
  if (!json) {
    std::cout
        << "                                           | best other rule        | ratio to that rule      | "
           "ratio to the lowest   | prefill\n"
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
