// "Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents", Figure 9: what the token budget
// of chunked prefill costs and gains, and whether an adaptive one finds the best.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/samples.h"
#include "tools/sim/experiment/step_scenes.h"
#include "tools/sim/step/one_engine.h"

namespace bfio::sim {
namespace {

using worker::BudgetGoal;

constexpr int64_t kBudgets[] = {128, 256, 512, 1024, 2048};
constexpr size_t kFixed = std::size(kBudgets);
constexpr struct {
  BudgetGoal goal;
  const char* name;
} kGoals[] = {{BudgetGoal::kE2e, "end to end"}, {BudgetGoal::kTtft, "TTFT"}, {BudgetGoal::kTpot, "TPOT"}};
constexpr size_t kVariants = kFixed + std::size(kGoals);
// Of the capacity at a budget of 512.
constexpr double kLoads[] = {0.4, 0.7, 0.9};
constexpr int64_t kRequests = 6000, kSlots = 512;
// While requests arrive.
constexpr size_t kSamples = 64;
// Of the arrivals, left out at the start: the tuner learns there.
constexpr double kWarmUp = 0.25;

struct Outcome {
  // Medians, seconds: end to end, TTFT, TPOT.
  double medians[std::size(kGoals)] = {};
  double mean_budget = 0;
  bool keeps_up = false;
};

absl::StatusOr<Outcome> RunVariant(const StepScene& scene, size_t variant, int64_t requests, uint64_t seed,
                                   const Runner::GoOn& go_on) {
  const std::vector<StepArrival> arrivals = DrawArrivals(scene, requests, seed);
  OneEngineOptions options;
  options.engine.cost = LongContextLlama70B();
  options.engine.slots = kSlots;
  options.engine.prompt_gives_token = true;
  options.engine.token_budget = kBudgets[std::min(variant, kFixed - 1)];
  if (variant >= kFixed) {
    options.adapt.emplace();
    options.adapt->goal = kGoals[variant - kFixed].goal;
    options.adapt->min_budget = kBudgets[0];
  }
  options.sample_s = arrivals.back().at / kSamples;
  options.go_on = go_on;
  auto run = RunOneEngine(arrivals, options);
  if (!run.ok()) return run.status();
  const StepLatencies latencies =
      LatenciesOf(arrivals, run->lives, kWarmUp * arrivals.back().at, options.engine.prompt_gives_token);
  Outcome outcome;
  outcome.medians[0] = QuantileOf(latencies.e2e, 0.5);
  outcome.medians[1] = QuantileOf(latencies.ttft, 0.5);
  outcome.medians[2] = QuantileOf(latencies.tpot, 0.5);
  outcome.mean_budget = run->mean_budget;
  // Broken off.
  if (run->tokens_left.size() < kSamples) return outcome;
  // What is left grows by less than 1 % of what comes, from the first to the last quarter.
  double early = 0, late = 0;
  for (size_t i = 0; i < kSamples / 4; ++i) {
    early += static_cast<double>(run->tokens_left[kSamples / 4 + i]) / (kSamples / 4);
    late += static_cast<double>(run->tokens_left[3 * kSamples / 4 + i]) / (kSamples / 4);
  }
  outcome.keeps_up = late - early < 0.01 * static_cast<double>(run->tokens);
  return outcome;
}

// By scene, variant, seed.
using Outcomes = std::vector<std::vector<std::vector<Outcome>>>;

absl::StatusOr<Outcomes> RunAll(const ExperimentContext& context, const std::vector<StepScene>& scenes) {
  const auto seeds = static_cast<size_t>(context.seeds);
  Outcomes outcomes(scenes.size(), std::vector<std::vector<Outcome>>(kVariants, std::vector<Outcome>(seeds)));
  std::vector<std::string> names;
  for (const StepScene& scene : scenes) {
    for (size_t i = 0; i < kVariants * seeds; ++i) {
      names.push_back(absl::StrCat(scene.workload->name, ", load ", scene.load, ", ", i));
    }
  }
  const int64_t requests = context.Shortened(kRequests, 400);
  const absl::Status status =
      context.runner->ForEach(names, [&](size_t i, const Runner::GoOn& go_on) -> absl::Status {
        if (!go_on()) return absl::OkStatus();
        const size_t scene = i / (kVariants * seeds), variant = i / seeds % kVariants;
        auto outcome = RunVariant(scenes[scene], variant, requests, i % seeds + 1, go_on);
        if (!outcome.ok()) return outcome.status();
        outcomes[scene][variant][i % seeds] = *outcome;
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return outcomes;
}

Estimate Median(const std::vector<Outcome>& of, size_t goal) {
  std::vector<double> values;
  for (const Outcome& outcome : of) values.push_back(outcome.medians[goal]);
  return EstimateMean(values);
}

double MeanBudget(const std::vector<Outcome>& of) {
  double sum = 0;
  for (const Outcome& outcome : of) sum += outcome.mean_budget;
  return sum / static_cast<double>(of.size());
}

bool KeepsUp(const std::vector<Outcome>& of) {
  return std::all_of(of.begin(), of.end(), [](const Outcome& outcome) { return outcome.keeps_up; });
}

std::string VariantName(size_t variant) {
  if (variant < kFixed) return absl::StrCat(kBudgets[variant]);
  return absl::StrCat("adaptive: ", kGoals[variant - kFixed].name);
}

report::Table SceneTable(const StepScene& scene, const std::vector<std::vector<Outcome>>& of) {
  report::Table table;
  table.title = absl::StrFormat("%s, %g %% of the capacity at 512", scene.workload->name, 100 * scene.load);
  table.note = "Medians over requests, means over seeds. A budget that does not keep up is none to choose.";
  table.columns = {{"budget", "tokens"}, {"mean budget", "tokens", 4},
                   {"keeps up", ""},     {"end to end", "s", 4},
                   {"+-", "s", 2},       {"TTFT", "s", 4},
                   {"+-", "s", 2},       {"TPOT", "s", 4},
                   {"+-", "s", 2}};
  for (size_t v = 0; v < kVariants; ++v) {
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row.emplace_back(VariantName(v));
    row.emplace_back(MeanBudget(of[v]));
    row.emplace_back(std::string(KeepsUp(of[v]) ? "yes" : "no"));
    for (size_t g = 0; g < std::size(kGoals); ++g) AddEstimate(row, Median(of[v], g));
  }
  return table;
}

// The adaptive budget against the best fixed one that keeps up.
void AddComparison(const StepScene& scene, const std::vector<std::vector<Outcome>>& of, report::Table& table,
                   double& worst) {
  for (size_t g = 0; g < std::size(kGoals); ++g) {
    size_t best = kFixed;
    for (size_t v = 0; v < kFixed; ++v) {
      if (!KeepsUp(of[v])) continue;
      if (best == kFixed || Median(of[v], g).mean < Median(of[best], g).mean) best = v;
    }
    if (best == kFixed) continue;
    const double ratio = Median(of[kFixed + g], g).mean / Median(of[best], g).mean;
    worst = std::max(worst, ratio);
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row.emplace_back(scene.workload->name);
    row.emplace_back(scene.load);
    row.emplace_back(std::string(kGoals[g].name));
    row.emplace_back(static_cast<double>(kBudgets[best]));
    row.emplace_back(MeanBudget(of[kFixed + g]));
    row.emplace_back(ratio);
  }
}

report::Chart GoalChart(size_t goal, const std::vector<StepScene>& scenes, const Outcomes& outcomes) {
  report::Chart chart;
  chart.title = absl::StrCat("Median ", kGoals[goal].name, " by token budget");
  chart.x = {"token budget", "tokens", true};
  chart.y = {absl::StrCat("median ", kGoals[goal].name), "s", true};
  for (size_t s = 0; s < scenes.size(); ++s) {
    report::Series series{absl::StrFormat("%s, %g %%", scenes[s].workload->name, 100 * scenes[s].load)};
    for (size_t v = 0; v < kFixed; ++v) {
      if (KeepsUp(outcomes[s][v])) {
        AddPoint(series, static_cast<double>(kBudgets[v]), Median(outcomes[s][v], goal));
      }
    }
    if (!series.x.empty()) chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace

absl::StatusOr<Findings> BudgetSweep(const ExperimentContext& context) {
  std::vector<StepScene> scenes;
  for (const Workload& workload : context.workloads) {
    for (const double load : kLoads) scenes.push_back({&workload, load});
  }
  const auto outcomes = RunAll(context, scenes);
  if (!outcomes.ok()) return outcomes.status();
  Findings findings;
  report::Table comparison;
  comparison.title = "The adaptive budget against the best fixed one";
  comparison.note = "Ratio of the medians for which the budget was adapted; below 1: better than any fixed.";
  comparison.columns = {{"workload", ""},
                        {"load", "", 2},
                        {"for", ""},
                        {"best fixed", "tokens"},
                        {"mean adaptive", "tokens", 4},
                        {"adaptive / best", "", 4}};
  double worst = 0;
  for (size_t s = 0; s < scenes.size(); ++s) AddComparison(scenes[s], (*outcomes)[s], comparison, worst);
  findings.text = {absl::StrFormat(
      "One engine under sarathi. Small budgets read the weights more often and large ones hold decodes up "
      "behind prompts: "
      "the best budget depends on lengths, load and what is wanted. The adaptive one replays the requests of "
      "late under "
      "each budget with the cost it has fitted; it is within a factor of %.3f of the best fixed one "
      "everywhere.",
      worst)};
  findings.tables.push_back(std::move(comparison));
  for (size_t s = 0; s < scenes.size(); ++s) findings.tables.push_back(SceneTable(scenes[s], (*outcomes)[s]));
  for (size_t g = 0; g < std::size(kGoals); ++g) findings.charts.push_back(GoalChart(g, scenes, *outcomes));
  const BatchCost cost = LongContextLlama70B();
  findings.parameters = {
      {"batch time",
       absl::StrFormat("%g s + %g s for each token beyond %d", cost.c_s, cost.a_s_per_token, cost.b0_tokens)},
      {"long contexts",
       absl::StrFormat("%.3g s per pair of prompt tokens, %.3g s per cached token of a decode",
                       cost.k1_s_per_pair, cost.k2_s_per_token)},
      {"slots", absl::StrCat(kSlots)},
      {"arrivals", absl::StrCat("Poisson, ", context.Shortened(kRequests, 400),
                                " requests, the first quarter ", "not counted")},
      {"seeds", absl::StrCat("1 to ", context.seeds)},
      {"intervals", "95 %, Student's t over the seeds"}};
  return findings;
}

}  // namespace bfio::sim
