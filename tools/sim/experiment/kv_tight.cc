// Admission where KV is short: 8 workers with memory for 60 % of the requests they have slots for.
//
// Memory is 0.6 B times what a resident holds in the mean, sizes weighed by how long they stay. Rules:
// reservation of all a request may make; the fixed watermark (protection) over its share, whose best is the
// line to beat; and kv_feasible with known and with learnt lengths. A preempted request's tokens are computed
// again, which costs what any prompt token costs: unless --prefill says otherwise, what the paper's authors'
// simulator charges for a row of the batch (common/cost/step_time.h).
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {
namespace {

constexpr double kShare = 0.6;
constexpr double kRowSeconds = 0.6e-3 / 16;
constexpr double kAlphas[] = {0, 0.01, 0.02, 0.04, 0.08};

constexpr Metric kUsed{"kv_used_fraction", "KV used", "%", 100};
constexpr Metric kOverflows{"overflows", "overflows", ""};
constexpr Metric kRecomputed{"recomputed_tokens", "recomputed", "10^3 tokens", 1e-3};
constexpr Metric kMetrics[] = {metrics::kThroughput, kUsed,          kOverflows,
                               kRecomputed,          metrics::kIdle, metrics::kWaitP99};

struct Gate {
  std::string admission, lookahead;
  double confidence = 0.99;
};

std::vector<Gate> Gates() {
  std::vector<Gate> gates = {{"none", "none"}};
  for (const double alpha : kAlphas) gates.push_back({absl::StrCat("protection:alpha=", alpha), "none"});
  gates.push_back({"wait", "none"});
  gates.push_back({"nested_wait", "none"});
  gates.push_back({"kv_feasible+wait", "survival"});
  gates.push_back({"kv_feasible", "max_tokens"});
  gates.push_back({"kv_feasible", "oracle"});
  for (const double confidence : {0.9, 0.99, 0.999}) gates.push_back({"kv_feasible", "survival", confidence});
  return gates;
}

bool IsWatermark(const Gate& gate) {
  return absl::StrContains(gate.admission, "protection");
}

int64_t MemoryFor(const SimOptions& options, const Trace& trace) {
  double held = 0, steps = 0;
  for (const TraceRequest& request : trace.requests) {
    const auto prompt = static_cast<double>(request.prompt_tokens),
               output = static_cast<double>(request.output_tokens);
    held += output * (prompt + (output - 1) / 2);
    steps += output;
  }
  return static_cast<int64_t>(kShare * options.batch * held / steps);
}

report::Table AllCells(const Workload& workload, int64_t memory, const std::vector<Gate>& gates,
                       const SeededRuns& runs, size_t best) {
  report::Table table;
  table.title = absl::StrCat("Admission with KV for ", absl::StrFormat("%.0f", 100 * kShare),
                             " % of the slots: ", workload.name);
  table.note = absl::StrCat("Each worker has ", memory, " KV tokens. Throughput against the best watermark, ",
                            gates[best].admission,
                            ", paired by seed. overflows: steps of a worker in which it preempted. +-: half "
                            "width of the 95 % interval.");
  table.columns = {
      {"admission", ""}, {"lookahead", ""}, {"confidence", ""}, {"against the line", ""}, {"+-", "", 2}};
  AddColumns(table, kMetrics);
  for (size_t i = 0; i < gates.size(); ++i) {
    std::vector<report::Cell>& row = table.rows.emplace_back();
    const bool confident = gates[i].lookahead == "survival";
    row = {gates[i].admission, gates[i].lookahead, confident ? absl::StrCat(gates[i].confidence) : "-"};
    AddEstimate(row, runs.Ratio(i, best, metrics::kThroughput.key));
    AddCells(row, runs, i, kMetrics);
  }
  return table;
}

}  // namespace

absl::StatusOr<Findings> KvTight(const ExperimentContext& context) {
  const std::vector<Gate> gates = Gates();
  Findings findings;
  findings.parameters = CommonParameters(context);
  for (const Workload& workload : context.workloads) {
    SimOptions options = context.base;
    options.mode = "overload";
    options.requests = 0;
    if (!context.workers_given) options.workers = 8;
    options.steps = StepsOf(context, 50);
    options.warmup = WarmUpOf(context, *workload.trace);
    if (options.cost.prefill_s_per_token == 0) options.cost.prefill_s_per_token = kRowSeconds;
    options.kv_tokens = MemoryFor(options, *workload.trace);
    const std::vector<std::string> policies = context.PoliciesOr({options.policy});
    options.policy = policies.front();
    std::vector<Variant> variants;
    for (const Gate& gate : gates) {
      options.admission = gate.admission;
      options.lookahead = gate.lookahead;
      options.admission_confidence = gate.confidence;
      variants.push_back({absl::StrCat(gate.admission, ", ", gate.lookahead, ", ", gate.confidence),
                          options,
                          RotatedBySeed(workload),
                          {}});
    }
    absl::StatusOr<SeededRuns> runs = RunSeeds(context, variants);
    if (!runs.ok()) return runs.status();
    size_t best = 0;
    for (size_t i = 0; i < gates.size(); ++i) {
      const auto throughput = [&](size_t v) { return runs->Mean(v, metrics::kThroughput.key).mean; };
      if (IsWatermark(gates[i]) && (!IsWatermark(gates[best]) || throughput(i) > throughput(best))) best = i;
    }
    findings.tables.push_back(AllCells(workload, options.kv_tokens, gates, *runs, best));
    AddRunLength(findings, workload, options);
    findings.parameters.emplace_back(absl::StrCat("KV tokens per worker, ", workload.name),
                                     absl::StrCat(options.kv_tokens));
    findings.text.push_back(absl::StrFormat(
        "%s: kv_feasible makes %.3f of the best watermark's throughput with known lengths and %.3f with "
        "learnt ones at confidence 0.99; reserving all that a request may make, %.3f.",
        workload.name, runs->Ratio(gates.size() - 4, best, metrics::kThroughput.key).mean,
        runs->Ratio(gates.size() - 2, best, metrics::kThroughput.key).mean,
        runs->Ratio(0, best, metrics::kThroughput.key).mean));
  }
  return findings;
}

}  // namespace bfio::sim
