// What long prompts cost a group at the barrier, and what a router gains that plans prompts as load.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/samples.h"
#include "tools/sim/experiment/step_scenes.h"
#include "tools/sim/step/group.h"

namespace bfio::sim {
namespace {

constexpr struct {
  PrefillPlan plan;
  const char* name;
} kPlans[] = {{PrefillPlan::kBlind, "fewest tokens"},
              {PrefillPlan::kBalanced, "fewest prompt tokens to compute"},
              {PrefillPlan::kEqualised, "so, and equal pieces"}};
constexpr size_t kCount = std::size(kPlans);
// Of four ranks' capacity at a budget of 512.
constexpr double kLoads[] = {0.3, 0.5, 0.7};
constexpr int32_t kRanks = 4;
constexpr int64_t kRequests = 6000;

struct Outcome {
  double idle = 0, tokens_per_s = 0, ttft = 0, ttft_p99 = 0, tpot = 0, e2e = 0;
};

absl::StatusOr<Outcome> RunPlan(const StepScene& scene, PrefillPlan plan, int64_t requests, uint64_t seed) {
  const std::vector<StepArrival> arrivals = DrawArrivals(scene, requests, seed);
  StepGroupOptions options;
  options.ranks = kRanks;
  options.plan = plan;
  options.slots = 256;
  options.cost = LongContextLlama70B();
  const auto run = RunStepGroup(arrivals, options);
  if (!run.ok()) return run.status();
  const StepLatencies latencies = LatenciesOf(arrivals, run->lives, 0.1 * arrivals.back().at, true);
  Outcome outcome;
  outcome.idle = run->idle_fraction;
  outcome.tokens_per_s = static_cast<double>(run->tokens) / run->end_s;
  outcome.ttft = QuantileOf(latencies.ttft, 0.5);
  outcome.ttft_p99 = QuantileOf(latencies.ttft, 0.99);
  outcome.tpot = QuantileOf(latencies.tpot, 0.5);
  outcome.e2e = QuantileOf(latencies.e2e, 0.5);
  return outcome;
}

Estimate Mean(const std::vector<Outcome>& of, double Outcome::*field) {
  std::vector<double> values;
  for (const Outcome& outcome : of) values.push_back(outcome.*field);
  return EstimateMean(values);
}

}  // namespace

absl::StatusOr<Findings> PrefillGroup(const ExperimentContext& context) {
  std::vector<StepScene> scenes;
  for (const Workload& workload : context.workloads) {
    for (const double load : kLoads) scenes.push_back({&workload, load, kRanks});
  }
  const auto seeds = static_cast<size_t>(context.seeds);
  std::vector<std::vector<Outcome>> outcomes(scenes.size() * kCount, std::vector<Outcome>(seeds));
  std::vector<std::string> names;
  for (size_t i = 0; i < outcomes.size() * seeds; ++i) {
    names.push_back(absl::StrCat(scenes[i / seeds / kCount].workload->name, ", ", i));
  }
  const int64_t requests = context.Shortened(kRequests, 300);
  const absl::Status status =
      context.runner->ForEach(names, [&](size_t i, const Runner::GoOn& go_on) -> absl::Status {
        if (!go_on()) return absl::OkStatus();
        const size_t which = i / seeds;
        auto outcome = RunPlan(scenes[which / kCount], kPlans[which % kCount].plan, requests, i % seeds + 1);
        if (!outcome.ok()) return outcome.status();
        outcomes[which][i % seeds] = *outcome;
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  Findings findings;
  findings.text = {
      "Four ranks meet after every batch. A rank that computes a piece of a long prompt holds the others up. "
      "Placing a request where the fewest prompt tokens wait spreads the pieces; bounding every rank's piece "
      "by the mean rank's work makes them alike, at the price of long prompts' first token."};
  report::Table table;
  table.title = "Barrier idle by how prompts are planned";
  table.note = "Medians over requests but for p99, means over seeds.";
  table.columns = {{"workload", ""},     {"load", "", 2},  {"a request goes to", ""},
                   {"idle", "%", 4},     {"+-", "%", 2},   {"TTFT", "s", 4},
                   {"TTFT p99", "s", 4}, {"TPOT", "s", 4}, {"end to end", "s", 4}};
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const StepScene& scene = scenes[i / kCount];
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row.emplace_back(scene.workload->name);
    row.emplace_back(scene.load);
    row.emplace_back(std::string(kPlans[i % kCount].name));
    AddEstimate(row, Mean(outcomes[i], &Outcome::idle), 100);
    for (double Outcome::*field : {&Outcome::ttft, &Outcome::ttft_p99, &Outcome::tpot, &Outcome::e2e}) {
      row.emplace_back(Mean(outcomes[i], field).mean);
    }
  }
  findings.tables.push_back(std::move(table));
  findings.parameters = {{"ranks", absl::StrCat(kRanks, ", 256 slots each, sarathi with a budget of 512")},
                         {"least piece", "64 prompt tokens of a rank and step"},
                         {"load", "of the ranks' capacity at a budget of 512, were there no barrier"},
                         {"arrivals", absl::StrCat("Poisson, ", requests, " requests")},
                         {"seeds", absl::StrCat("1 to ", context.seeds)},
                         {"intervals", "95 %, Student's t over the seeds"}};
  return findings;
}

}  // namespace bfio::sim
