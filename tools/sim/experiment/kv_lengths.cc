// What admission is worth when lengths are not known: the same rules with lengths known, guessed, bounded,
// learnt, or taken at their limit.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/rng.h"
#include "router/core/admission/lengths.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/kv_study.h"

namespace bfio::sim {
namespace {

constexpr double kRates[] = {50, 20};
constexpr int64_t kArrivals = 10'000, kLimit = 2'000;

struct Belief {
  std::string name;
  // The length told, of the true one.
  int64_t (*told)(int64_t output, Rng& rng) = nullptr;
  // Learnt with this confidence instead.
  double confidence = 0;
};

int64_t Scaled(int64_t output, double factor) {
  return std::clamp<int64_t>(std::llround(static_cast<double>(output) * factor), 1, kLimit);
}

std::vector<Belief> Beliefs() {
  return {
      {"known", [](int64_t output, Rng&) { return output; }},
      {"within 25 %", [](int64_t o, Rng& rng) { return Scaled(o, 0.75 + 0.5 * rng.Uniform()); }},
      {"interval to twice, its lower end",
       [](int64_t o, Rng& rng) { return Scaled(o, 0.5 + 0.5 * rng.Uniform()); }},
      {"interval to twice, its upper end", [](int64_t o, Rng& rng) { return Scaled(o, 1 + rng.Uniform()); }},
      {"survival 0.5", nullptr, 0.5},
      {"survival 0.9", nullptr, 0.9},
      {"survival 0.99", nullptr, 0.99},
      {"max_tokens", [](int64_t, Rng&) { return kLimit; }}};
}

struct Row {
  std::string rule, name;
  Belief belief;
};

std::vector<Row> Rows() {
  std::vector<Row> rows;
  for (const auto& [rule, name] : std::vector<std::pair<std::string, std::string>>{
           {"mc_sf_paced", "MC-SF, paced"}, {"mc_sf", "MC-SF"}, {"mc_fcfs", "MC in order of arrival"}}) {
    for (const Belief& belief : Beliefs()) rows.push_back({rule, name, belief});
  }
  const Belief none{"not asked for", [](int64_t output, Rng&) { return output; }};
  rows.push_back({"watermark", "watermark 0.01", none});
  rows.push_back({"watermark:share=0.1", "watermark 0.1", none});
  rows.push_back({"protect:alpha=0.25", "greedy 0.25", none});
  return rows;
}

absl::StatusOr<KvRun> RunRow(const Row& row, double rate, int64_t requests, uint64_t seed,
                             const Runner::GoOn& go_on) {
  std::vector<KvArrival> arrivals = KvArrivals({"lmsys", nullptr}, rate, requests, kKvMemory, seed);
  Rng errors = Rng(seed).Fork(3);
  for (KvArrival& arrival : arrivals) {
    arrival.most = kLimit;
    if (row.belief.told != nullptr) arrival.believed = row.belief.told(arrival.output, errors);
  }
  std::unique_ptr<core::Lengths> lengths;
  if (row.belief.confidence > 0) {
    auto lookahead = core::MakeLookahead("survival");
    if (!lookahead.ok()) return lookahead.status();
    lengths = std::make_unique<core::LookaheadLengths>(*std::move(lookahead), row.belief.confidence);
  }
  KvRunOptions options;
  options.rule.memory = kKvMemory;
  options.rule.seed = seed;
  options.rule.lengths = lengths.get();
  options.round_seconds = KvBatchSeconds;
  options.go_on = go_on;
  return RunOneWorker(row.rule, arrivals, options);
}

}  // namespace

absl::StatusOr<Findings> KvLengthsUnknown(const ExperimentContext& context) {
  const int64_t requests = context.Shortened(kArrivals, 200);
  const std::vector<Row> rows = Rows();
  const auto seeds = static_cast<size_t>(context.seeds);
  Findings findings;
  findings.parameters = KvParameters(context, requests);
  findings.parameters.emplace_back("limit of every request", absl::StrCat(kLimit, " tokens"));
  for (const double rate : kRates) {
    std::vector<std::vector<KvRun>> runs(rows.size(), std::vector<KvRun>(seeds));
    std::vector<std::string> names;
    for (const Row& row : rows) {
      for (size_t seed = 1; seed <= seeds; ++seed)
        names.push_back(absl::StrCat(row.name, ", ", row.belief.name, ", seed ", seed));
    }
    const absl::Status status =
        context.runner->ForEach(names, [&](size_t i, const Runner::GoOn& go_on) -> absl::Status {
          auto run = RunRow(rows[i / seeds], rate, requests, i % seeds + 1, go_on);
          if (!run.ok()) return run.status();
          runs[i / seeds][i % seeds] = *std::move(run);
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    report::Table table;
    table.title = absl::StrFormat("%g requests per second", rate);
    table.note =
        "Against: latency divided by that of paced MC-SF with lengths known. Preempted: times per request; "
        "greedy's lose their progress, all others' resume. Repeated: tokens read or made again, per request. "
        "A request that outlives its length is asked for again, or counts as a quarter longer.";
    table.columns = {
        {"rule", ""},    {"lengths", ""},      {"latency", "s"},       {"+-", "s", 2},
        {"against", ""}, {"preempted", "", 3}, {"repeated", "tokens"}, {"largest memory", "tokens"}};
    const double known = KvLatency(runs[0]).mean;
    for (size_t r = 0; r < rows.size(); ++r) {
      double thrown_out = 0, repeated = 0;
      int64_t peak = 0;
      for (const KvRun& run : runs[r]) {
        thrown_out += static_cast<double>(run.evictions + run.preemptions);
        repeated += static_cast<double>(run.repeated_tokens);
        peak = std::max(peak, run.peak_memory);
      }
      const double all = static_cast<double>(requests) * static_cast<double>(seeds);
      std::vector<report::Cell>& cells = table.rows.emplace_back();
      cells.emplace_back(rows[r].name);
      cells.emplace_back(rows[r].belief.name);
      AddEstimate(cells, KvLatency(runs[r]));
      cells.emplace_back(KvLatency(runs[r]).mean / known);
      cells.emplace_back(thrown_out / all);
      cells.emplace_back(repeated / all);
      cells.emplace_back(peak);
    }
    findings.tables.push_back(std::move(table));
  }
  findings.text = {
      "One worker, conversation lengths. What preempts resumes with what it has made, so a bold guess costs "
      "reading again; a careful one leaves memory unused."};
  return findings;
}

}  // namespace bfio::sim
