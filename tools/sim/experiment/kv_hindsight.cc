// How far admission rules are from the best schedule in hindsight, on small random instances and on all
// instances of a few requests: "Online Scheduling for LLM Inference with KV Cache Constraints", Section 5.1
// of its later versions, at the size that a search can prove.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tools/sim/admission/hindsight.h"
#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {
namespace {

// Places tried before an instance is given up as unproven.
constexpr int64_t kSteps = 1'000'000;
constexpr int64_t kTrials = 200;

constexpr struct {
  const char* text;
  const char* name;
} kRules[] = {{"mc_sf", "MC-SF"}, {"mc_sf_paced", "MC-SF, paced"}, {"mc_fcfs", "MC in order of arrival"}};

struct Problem {
  std::vector<KvArrival> arrivals;
  core::AdmissionOptions options;
};

// The paper's ranges are M 30 to 50 and 40 to 60 requests; these are what can be proven.
Problem Random(bool online, uint64_t seed) {
  Rng rng(seed);
  Problem problem;
  problem.options.memory = 12 + static_cast<int64_t>(rng.Below(9));
  const auto requests = 6 + rng.Below(3);
  // Arrivals per round.
  const double rate = 0.5 + rng.Uniform();
  double at = 0;
  const auto prompt = 1 + static_cast<int64_t>(rng.Below(3));
  for (uint64_t i = 0; i < requests; ++i) {
    if (online) at += rng.Exponential() / rate;
    const auto most = static_cast<uint64_t>(std::min<int64_t>(9, problem.options.memory - prompt));
    problem.arrivals.push_back({std::ceil(at), prompt, 1 + static_cast<int64_t>(rng.Below(most))});
  }
  return problem;
}

// All multisets of 2 to 5 outputs of 1 to 5, prompts of 1 and 2, memory from what one request needs to what
// two do.
std::vector<Problem> AllSmall(bool counts_first_round) {
  std::vector<Problem> problems;
  std::vector<int64_t> outputs;
  const std::function<void(size_t, int64_t)> each = [&](size_t n, int64_t least) {
    if (outputs.size() < n) {
      for (int64_t output = least; output <= 5; ++output) {
        outputs.push_back(output);
        each(n, output);
        outputs.pop_back();
      }
      return;
    }
    for (int64_t prompt = 1; prompt <= 2; ++prompt) {
      for (int64_t memory = prompt + 5; memory <= 2 * (prompt + 5); ++memory) {
        Problem& problem = problems.emplace_back();
        problem.options.memory = memory;
        problem.options.counts_first_round = counts_first_round;
        for (const int64_t output : outputs) problem.arrivals.push_back({0, prompt, output});
      }
    }
  };
  for (size_t n = 2; n <= 5; ++n) each(n, 1);
  return problems;
}

// Total latency over the best, by rule; empty where the best is not proven.
using Ratios = std::vector<double>;

absl::StatusOr<Ratios> Compare(const Problem& problem) {
  const auto best = HindsightOptimum(problem.arrivals, problem.options, kSteps);
  if (!best.has_value()) return Ratios();
  Ratios ratios;
  for (const auto& rule : kRules) {
    KvRunOptions options;
    options.rule = problem.options;
    const auto run = RunOneWorker(rule.text, problem.arrivals, options);
    if (!run.ok()) return run.status();
    ratios.push_back(run->total_latency / static_cast<double>(best->total_latency));
  }
  return ratios;
}

struct Study {
  std::string name;
  std::vector<Problem> problems;
};

void AddRows(const Study& study, const std::vector<Ratios>& ratios, report::Table& table) {
  for (size_t r = 0; r < std::size(kRules); ++r) {
    int64_t proven = 0, above = 0;
    double sum = 0, worst = 1;
    for (const Ratios& of : ratios) {
      if (of.empty()) continue;
      ++proven;
      above += of[r] > 1 + 1e-9;
      sum += of[r];
      worst = std::max(worst, of[r]);
    }
    table.rows.push_back({study.name, std::string(kRules[r].name), proven,
                          static_cast<int64_t>(ratios.size()) - proven, above,
                          sum / static_cast<double>(proven), worst});
  }
}

}  // namespace

absl::StatusOr<Findings> KvHindsight(const ExperimentContext& context) {
  const int64_t trials = context.Shortened(kTrials, 4);
  std::vector<Study> studies = {{"at once", {}}, {"online", {}}};
  for (int64_t t = 1; t <= trials; ++t) {
    for (size_t s = 0; s < 2; ++s) studies[s].problems.push_back(Random(s == 1, static_cast<uint64_t>(t)));
  }
  for (const bool first : {true, false}) {
    std::vector<Problem> all = AllSmall(first);
    // A shortened run takes every so many of them.
    std::vector<Problem> some;
    const auto stride = static_cast<size_t>(std::ceil(context.shorten));
    for (size_t i = 0; i < all.size(); i += stride) some.push_back(std::move(all[i]));
    studies.push_back({first ? "all small" : "all small, first round free", std::move(some)});
  }
  report::Table table;
  table.title = "Total latency over the best schedule's";
  table.note =
      "At once and online: 6 to 8 requests, M from 12 to 20, prompts of 1 to 3 tokens, outputs of 1 to 9, "
      "0.5 to 1.5 arrivals a round. All small: 2 to 5 requests at once with outputs of 1 to 5, prompts of 1 "
      "and 2, every M up to what two of the longest need; first round free: a prompt holds memory from its "
      "first token on. Unproven: the search for the best was given up.";
  table.columns = {{"instances", ""},    {"rule", ""},          {"proven", ""},  {"unproven", ""},
                   {"not the best", ""}, {"mean ratio", "", 4}, {"worst", "", 4}};
  for (const Study& study : studies) {
    std::vector<Ratios> ratios(study.problems.size());
    constexpr size_t kBatch = 64;
    std::vector<std::string> names;
    for (size_t first = 0; first < study.problems.size(); first += kBatch)
      names.push_back(absl::StrCat(study.name, ", from ", first));
    const absl::Status status =
        context.runner->ForEach(names, [&](size_t b, const Runner::GoOn& go_on) -> absl::Status {
          const size_t last = std::min(study.problems.size(), (b + 1) * kBatch);
          for (size_t i = b * kBatch; i < last && go_on(); ++i) {
            auto of = Compare(study.problems[i]);
            if (!of.ok()) return of.status();
            ratios[i] = *std::move(of);
          }
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    AddRows(study, ratios, table);
  }
  Findings findings;
  findings.tables.push_back(std::move(table));
  findings.parameters = {{"trials", absl::StrCat(trials)},
                         {"places tried for an optimum", absl::StrCat("at most ", kSteps)}};
  findings.text = {
      "Shortest first is not optimal, not even for requests that are all there at once, but near it on "
      "average. The pace, made for queues that do not end, costs a little where a handful of requests is all "
      "there will be."};
  return findings;
}

}  // namespace bfio::sim
