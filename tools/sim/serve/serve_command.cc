#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/commands.h"
#include "tools/sim/serve/hand_off_rules.h"
#include "tools/sim/serve/serve_grid.h"
#include "tools/sim/serve/serve_run.h"

namespace bfio::sim {

absl::StatusOr<BatchCost> CostOf(const std::vector<double>& numbers) {
  if (numbers.size() < 5 || numbers.size() > 6 || numbers[0] <= 0 || numbers[1] <= 0 ||
      (numbers.size() == 6 && numbers[5] < 1)) {
    return absl::InvalidArgumentError(
        "--cost must be C,A,B0,K1,K2 or C,A,B0,K1,K2,GRANULE, with C and A above 0 and GRANULE at least 1");
  }
  BatchCost cost{.c_s = numbers[0],
                 .a_s_per_token = numbers[1],
                 .b0_tokens = static_cast<int64_t>(numbers[2]),
                 .k1_s_per_pair = numbers[3],
                 .k2_s_per_token = numbers[4]};
  if (numbers.size() == 6) cost.granule_tokens = static_cast<int64_t>(numbers[5]);
  return cost;
}

namespace {

// The lag of a pipelined router.
constexpr int32_t kDefaultLag = 2;
constexpr int64_t kGridRows = 20'000;
constexpr uint64_t kGridRowsSeed = 7;

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

constexpr char kPromptPriceHelp[] =
    "seconds that a step takes longer on all ranks if any rank computes prompt tokens (piecewise instead of "
    "full CUDA graphs)";

// The options that both subcommands have.
void AddServeOptions(OptionTable& table, ServeOptions& options, bool& json) {
  AddPadded(table, options.cost.terms);
  table.Add("eager_price", &options.cost.terms.eager_s, Within(0, 1),
            "seconds that a step takes longer on all ranks if any rank has more than S rows (--padded=S)");
  table.Add("rule", &options.rule,
            "rule that places requests and prompts; bfio_sim --help lists the rules of serve");
  table.Add("lag", &options.lag, Within(0, 2),
            "steps from the reports that a plan of bfio is made from to the step that it applies to: 2 for a "
            "pipelined router, 0 or 1 for lockstep; engines' own rules decide when a step begins");
  table.Add("jitter", &options.jitter, Within(0, 1),
            "standard deviation of the logarithm of a random factor on each rank's local time");
  table.Add("closed", &options.closed,
            "closed loop: a request arrives whenever one ends, and --load is the number of requests in the "
            "system as a share of all slots");
  table.AddChoice<bool>(
      "known_cost", &options.fitted_cost, {{"true", false}, {"fitted", true}},
      "step cost that the rule plans with and ranks fill their steps by: true, or fitted to "
      "the measured steps, as workers do");
  AddJson(table, json);
}

absl::StatusOr<std::vector<ServeWorkload>> GridWorkloads(const std::vector<std::string>& paths,
                                                         const std::vector<std::string>& profiles) {
  std::vector<ServeWorkload> workloads;
  for (const std::string& path : paths) {
    BFIO_ASSIGN_OR_RETURN(Trace trace, ReadTrace(path));
    workloads.push_back({std::filesystem::path(path).stem().string(), std::move(trace)});
  }
  for (const std::string& profile : profiles) {
    BFIO_ASSIGN_OR_RETURN(Trace trace, SampleProfile(profile, kGridRows, kGridRowsSeed));
    workloads.push_back({profile, std::move(trace)});
  }
  return workloads;
}

// Target in every cell: TTFT p99 at most this multiple of the best other rule's.
constexpr double kLongTail = 1.5;

// Ratios to the best run of all other rules (the lowest E2E, chosen in hindsight). floor: lower bound of E2E,
// of a perfectly balanced group in which no request waits and no row is wasted.
nlohmann::ordered_json Ratios(const ServeCell& cell) {
  const ServeMeasurements &ours = cell.candidate, &best = cell.best;
  nlohmann::ordered_json ratios = {{"workload", cell.workload.substr(0, 24)},
                                   {"engine", cell.engine},
                                   {"ranks", cell.workers},
                                   {"load", cell.load},
                                   {"rule", best.rule},
                                   {"budget", best.budget},
                                   {"e2e", ours.e2e_s / best.e2e_s},
                                   {"longer", ours.e2e_s > best.e2e_s ? 1 : 0},
                                   {"ttft", ours.ttft_p50_s / best.ttft_p50_s},
                                   {"p99", ours.ttft_p99_s / best.ttft_p99_s},
                                   {"late", ours.ttft_p99_s > kLongTail * best.ttft_p99_s ? 1 : 0},
                                   {"tpot", ours.tpot_s / best.tpot_s},
                                   {"idle", ours.idle_prefill_fraction},
                                   {"tokens", ours.throughput_tokens_per_s / best.throughput_tokens_per_s}};
  if (cell.floor) ratios["floor"] = cell.floor->e2e_s / best.e2e_s;
  return ratios;
}

constexpr char kGridColumns[] =
    "workload:-24 engine:-6 price_ms:5.1 ranks:3 load:5.2 rule:-15 budget:6 e2e:6.3 longer:5.2 ttft:5.2 "
    "p99:5.2 late:5.2 tpot:6.3 idle:6.2% tokens:8.3 floor:6.3";

// The means and the largest of the ratios, by price, number of ranks and load.
void PrintSummary(const std::vector<nlohmann::ordered_json>& cells) {
  std::map<std::tuple<double, int32_t, double>, std::map<std::string, std::vector<double>>> groups;
  for (const nlohmann::ordered_json& cell : cells) {
    for (const auto& [key, value] : cell.items())
      if (value.is_number() && key != "budget")
        groups[{cell["price_ms"], cell["ranks"], cell["load"]}][key].push_back(value);
  }
  for (const auto& [group, ratios] : groups) {
    nlohmann::ordered_json mean = {{"workload", absl::StrCat("mean of ", ratios.at("e2e").size())}};
    nlohmann::ordered_json largest = {{"workload", "largest"}};
    for (const auto& [key, values] : ratios) {
      mean[key] = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
      largest[key] = *std::max_element(values.begin(), values.end());
    }
    PrintRow(kGridColumns, mean);
    PrintRow(kGridColumns, largest);
  }
}

// The differences between rules are as small as a per cent.
constexpr int64_t kHandOffRequests = 20'000;
constexpr char kHandOffColumns[] =
    "workload:-14 ranks:2 prefill_ranks:2 load:5.2 closed:5 rule:-18 tokens_per_s:7.0 "
    "balanced_tokens_per_s:7.0 "
    "e2e_s_mean:7.3 ttft_s_p50:7.3 ttft_s_p99:7.3 lease_share_p99:6.2% expired:5";

int32_t PrefillRanks(const ServeOptions& options, const Trace& trace, double busy) {
  const double prompts_per_s =
      CapacityOf(WithoutPrompts(MomentsOf(trace)), options.cost.batch, options.workers, options.slots)
          .requests_per_s;
  const double busy_ranks = prompts_per_s * PromptSeconds(trace, options.cost.batch, options.prefill_budget);
  return std::max(1, static_cast<int32_t>(std::ceil(busy_ranks / busy)));
}

nlohmann::ordered_json HandOffJson(const ServeOptions& options, const std::string& workload,
                                   const absl::StatusOr<ServeResult>& run) {
  nlohmann::ordered_json json = {{"workload", workload.substr(0, 24)},
                                 {"ranks", options.workers},
                                 {"prefill_ranks", options.prefill_ranks},
                                 {"load", options.load},
                                 {"closed", options.closed},
                                 {"rule", options.rule}};
  if (!run.ok()) return json;
  json["capacity_per_s"] = run->capacity.requests_per_s;
  json["requests"] = run->times.requests;
  json["tokens_per_s"] = run->throughput_tokens_per_s;
  json["balanced_tokens_per_s"] = run->balanced_tokens_per_s;
  json["e2e_s_mean"] = run->times.e2e_s.mean;
  json["ttft_s_p50"] = run->times.ttft_s.p50;
  json["ttft_s_p99"] = run->times.ttft_s.p99;
  json["idle_fraction"] = run->idle_fraction;
  json["hand_off_s_p50"] = run->hand_off_s.p50;
  json["hand_off_s_p99"] = run->hand_off_s.p99;
  json["lease_share_p99"] = run->hand_off_s.p99 / options.lease_s;
  json["handed_over"] = run->handed_over;
  json["expired"] = run->expired;
  json["preempted"] = run->preempted;
  return json;
}

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
  AddServeOptions(table, options, json);
  table.Add("prompt_price", &options.cost.terms.prompt_s, Within(0, 1), kPromptPriceHelp);
  AddWorkload(table, workload);
  table.Add("ranks|workers", &options.workers, Within(1, 1024), "number of ranks that meet in one barrier");
  table.Add("slots", &options.slots, Within(1, 65536), "slots per rank (max_num_seqs)");
  table.Add("token_budget|budget", &options.budget, Within(1, 1e18),
            "token budget of a step per rank (max_num_batched_tokens), for rules that have one");
  table.Add("load", &options.load, Within(1e-9, 10),
            "arrival rate as a share of the capacity of a perfectly balanced group");
  table.Add("ttft_objective", &options.ttft_objective_s, Within(0, 3600),
            "objective for the time to first token of every request, in seconds; 0: none");
  table.Add("tokens_per_step", &options.tokens_per_step, Within(1, 64),
            "tokens that a decode generates per step on average (speculative decoding), with as many rows; "
            "--load remains that of one token per step");
  table.Add("seed", &options.seed, "seed of arrivals and step times");
  AddNumbers(
      table, "cost", &cost, Within(0, 1e9),
      "step time of a rank in seconds, C + A max(0, rows - B0) + K1 pairs of prompt tokens + K2 tokens that "
      "decodes attend to, given as C,A,B0,K1,K2; a sixth number rounds rows up to a multiple of it; the "
      "default is an 8-billion-parameter model per GPU");
  read(table);
  BFIO_ASSIGN_OR_RETURN(options.cost.batch, CostOf(cost));
  BFIO_ASSIGN_OR_RETURN(const Trace trace, ReadWorkload(workload, 1, 0));
  BFIO_ASSIGN_OR_RETURN(const ServeResult run, RunServe(options, trace));
  PrintResult(ServeJson(options, trace.source, run), json);
  return absl::OkStatus();
}

absl::Status RunHandOffsCommand(const ReadOptions& read) {
  ServeOptions options;
  options.lag = kDefaultLag;
  options.least_requests = kHandOffRequests;
  std::string engine = "paper";
  std::vector<std::string> traces, profiles = {"conversation", "code", "burstgpt", "reasoning"}, rules;
  for (const HandOffRule& rule : HandOffRules()) rules.emplace_back(rule.name);
  std::vector<int32_t> groups = {8, 16};
  std::vector<double> loads = {0.5, 0.7, 0.85, 0.95}, closed = {1.2},
                      transfer = {options.transfer_s, options.transfer_s_per_token};
  double busy = 0.8;
  bool json = false;
  OptionTable table;
  table.Add("trace", &traces, "traces, separated by commas, besides --profiles");
  table.Add("profiles", &profiles, "built-in workloads, separated by commas");
  table.Add("rules", &rules, "rules, separated by commas; bfio_sim --help lists them");
  table.Add("engine", &engine, "cost of a rank's steps, and its slots: paper, moe or 8b (serve-grid)");
  AddNumbers(table, "ranks", &groups, Within(1, 1024), "numbers of decode ranks, separated by commas");
  AddNumbers(
      table, "loads", &loads, Within(1e-9, 10),
      "arrival rates, separated by commas, as shares of the capacity of perfectly balanced decode ranks");
  AddNumbers(table, "closed", &closed, Within(1e-9, 10),
             "closed loops: numbers of requests in the system, separated by commas, as shares of all decode "
             "slots");
  table.Add("prefill_ranks", &options.prefill_ranks, Within(0, 1024),
            "ranks that compute prompts; 0: as many as --prefill_busy needs");
  table.Add("prefill_busy", &busy, Within(0.01, 1),
            "share of their time in which they compute prompts one by one when decode ranks are full");
  table.Add("kv_tokens", &options.kv_tokens, Within(0, 1e12),
            "KV memory of a decode rank, in tokens; 0: no limit");
  table.Add("token_budget", &options.budget, "token budget of a step of a decode rank");
  table.Add("prefill_token_budget", &options.prefill_budget, Within(1, 1e9), "the same of a prefill rank");
  AddNumbers(table, "transfer", &transfer, Within(0, 1e3),
             "time of a transfer of KV between ranks: SECONDS,SECONDS_PER_TOKEN");
  table.Add("lease", &options.lease_s, Within(0, 1e6),
            "seconds for which a prefill rank keeps the KV of a prompt");
  table.Add("lease_margin", &options.lease_margin_s, Within(0, 1e6),
            "seconds before that when the router has the prompt computed again");
  table.Add("requests", &options.least_requests, Within(1, 1e9),
            "requests that are counted in a run, at least");
  table.Add("seed", &options.seed, "seed of arrivals, and of rules that draw ranks");
  AddJson(table, json);
  read(table);
  if (transfer.size() != 2) return absl::InvalidArgumentError("--transfer must be SECONDS,SECONDS_PER_TOKEN");
  options.transfer_s = transfer[0];
  options.transfer_s_per_token = transfer[1];
  const auto of = std::ranges::find(ServeEngines(), engine, &ServeEngine::name);
  if (of == ServeEngines().end()) return absl::InvalidArgumentError("--engine must be paper, moe or 8b");
  options.cost.batch = of->cost;
  options.slots = of->slots;
  const int32_t prefill_ranks = options.prefill_ranks;
  std::vector<std::pair<double, bool>> levels;
  for (const double load : loads) levels.emplace_back(load, false);
  for (const double load : closed) levels.emplace_back(load, true);
  BFIO_ASSIGN_OR_RETURN(const std::vector<ServeWorkload> workloads, GridWorkloads(traces, profiles));
  if (!json) PrintHead(kHandOffColumns);
  for (const ServeWorkload& workload : workloads) {
    for (const int32_t ranks : groups) {
      options.workers = ranks;
      options.prefill_ranks = prefill_ranks > 0 ? prefill_ranks : PrefillRanks(options, workload.trace, busy);
      for (const auto& [load, is_closed] : levels) {
        options.load = load;
        options.closed = is_closed;
        for (const std::string& rule : rules) {
          if (ShutdownSignal::Requested()) return absl::CancelledError("interrupted");
          options.rule = rule;
          const absl::StatusOr<ServeResult> run = RunServe(options, workload.trace);
          if (!run.ok() && !absl::IsResourceExhausted(run.status())) return run.status();
          const nlohmann::ordered_json result = HandOffJson(options, workload.name, run);
          json ? PrintJson(result) : PrintRow(kHandOffColumns, result);
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RunServeGridCommand(const ReadOptions& read) {
  ServeGridOptions grid;
  grid.engines = ServeEngines();
  grid.loads = {0.3, 0.5, 0.7, 0.85, 0.95};
  grid.groups = {4, 8, 16};
  std::vector<double> prices = {0};
  std::vector<std::string> traces;
  int32_t threads = 0;
  bool json = false;
  OptionTable table;
  AddServeOptions(table, grid.run, json);
  AddNumbers(table, "prompt_price", &prices, Within(0, 1),
             absl::StrCat(kPromptPriceHelp, "; several, separated by commas: a grid for each"));
  table.Add("trace", &traces,
            "traces, separated by commas, besides the profiles code, reasoning and long_prompts; default: "
            "the profiles conversation and burstgpt");
  AddNumbers(table, "ranks|groups", &grid.groups, Within(1, 1024), "numbers of ranks, separated by commas");
  AddNumbers(table, "loads", &grid.loads, Within(1e-9, 10), "loads as of serve --load, separated by commas");
  AddNumbers(table, "token_budgets", &grid.budgets, Within(1, 1e9),
             "token budgets to try for rules that have a budget, separated by commas");
  table.Add("against", &grid.against,
            "compare --rule with this rule only, at equal budgets, one cell per budget; empty: with all "
            "other rules, each at its best budget in hindsight");
  table.Add("seeds", &grid.seeds, Within(1, 1000), "number of seeds, from 1 up");
  AddThreads(table, threads);
  read(table);
  grid.threads = NumThreads(threads);
  // Profiles with the same distributions replace the traces if none are given.
  std::vector<std::string> profiles = {"code", "reasoning", "long_prompts"};
  if (traces.empty()) profiles.insert(profiles.begin(), {"conversation", "burstgpt"});
  BFIO_ASSIGN_OR_RETURN(grid.workloads, GridWorkloads(traces, profiles));
  if (!json) PrintHead(kGridColumns);
  std::vector<nlohmann::ordered_json> cells;
  const absl::Time begin = MonotonicNow();
  absl::Status status;
  for (const double price_s : prices) {
    grid.run.cost.terms.prompt_s = price_s;
    const auto done = [&](const ServeCell& cell) {
      cells.push_back(Ratios(cell));
      cells.back()["price_ms"] = 1e3 * price_s;
      nlohmann::ordered_json result = ServeCellJson(cell);
      result["prompt_price_s"] = price_s;
      json ? PrintJson(result) : PrintRow(kGridColumns, cells.back());
    };
    status.Update(RunServeGrid(grid, done, [] { return !ShutdownSignal::Requested(); }));
    if (!status.ok() && !absl::IsResourceExhausted(status)) break;
  }
  std::cerr << cells.size() << " cells in " << absl::FormatDuration(MonotonicNow() - begin) << "\n";
  if (!json) PrintSummary(cells);
  return status;
}

}  // namespace bfio::sim
