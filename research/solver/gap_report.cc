// bfio_gap_report: how far the solver's plans are from CBC's proven optimum.
//
// Simulates overload on a trace (overload.h; G in {8, 12, 16}, |waiting| in {32, 64, 128}, H in {0, 10, 20},
// B = 72), every decision by the solver under the paper's J with oracle lookahead. After the warm-up it
// exports an instance every kEvery steps and lets CBC solve it. Prints, per H, how many were proven optimal
// and the distribution of (J - J*) / (G max L) over them, in per cent. Where CBC ran out of time, J* is its
// best plan; if the solver's is better, the gap counts as 0.
//
// Usage: bfio_gap_report TRACE [INSTANCES=300] [SECONDS=20]
// With two more arguments, JOBS and JOB, it does every JOBS-th instance only, and prints them line by line.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/workload/trace.h"
#include "research/solver/cbc.h"
#include "research/solver/lp_export.h"
#include "research/solver/overload.h"
#include "router/core/solver/solver.h"

namespace bfio::testing {
namespace {

constexpr int kWarmup = 400;
// Steps between two instances of one simulation.
constexpr int kEvery = 60;

struct Result {
  int32_t horizon = 0;
  bool proven = false;
  // In per cent of G max L, and of J*.
  double gap = 0, relative = 0;
};

core::SolverSettings Settings() {
  core::SolverSettings settings;
  settings.objective = core::ObjectiveKind::kPaper;
  return settings;
}

double LargestLoad(const core::Instance& instance) {
  double largest = 0;
  for (size_t g = 0; g < instance.workers.size(); ++g) {
    for (int32_t h = 0; h <= instance.horizon; ++h) largest = std::max(largest, instance.LoadAhead(g, h));
  }
  return largest;
}

// Empty when CBC found no plan.
absl::StatusOr<Result> Compare(const core::Instance& instance, double seconds) {
  std::string lp;
  BFIO_RETURN_IF_ERROR(sim::AppendLp(instance, core::ObjectiveKind::kPaper, {}, lp));
  BFIO_ASSIGN_OR_RETURN(const auto cbc, SolveWithCbc(lp, instance, seconds));
  if (!cbc.found) return absl::NotFoundError("cbc found no plan");
  core::Solver solver(Settings());
  const double ours = core::Evaluate(instance, Settings(), solver.Solve(instance));
  const double best = std::min(ours, core::Evaluate(instance, Settings(), cbc.solution));
  const double scale = static_cast<double>(instance.workers.size()) * LargestLoad(instance);
  return Result{instance.horizon, cbc.optimal, 100 * (ours - best) / scale,
                100 * (ours - best) / std::max(1.0, best)};
}

// Runs one simulation and compares `count` of its instances; `pick` selects those of this job.
template <class Pick>
void Collect(const OverloadOptions& options, const Trace& trace, int count, double seconds, const Pick& pick,
             std::vector<Result>& results) {
  Overload overload(options, trace);
  core::Solver solver(Settings());
  int step = 0, taken = 0;
  bool due = false;
  const auto decide = [&](const core::Instance& instance) -> const core::Solution& {
    if (due) {
      due = false;
      ++taken;
      if (pick()) {
        if (auto result = Compare(instance, seconds); result.ok()) {
          results.push_back(*result);
          std::printf("G %2d  waiting %3ld  H %2d  U %2ld  proven %d  gap %.4f %%  of J* %.2f %%\n",
                      options.workers, static_cast<long>(options.reveal), options.horizon,
                      static_cast<long>(instance.Target()), result->proven, result->gap, result->relative);
          std::fflush(stdout);
        } else {
          std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
        }
      }
    }
    return solver.Solve(instance);
  };
  while (taken < count) {
    due = ++step > kWarmup && (due || step % kEvery == 0);
    overload.Step(decide);
  }
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return NAN;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

void Print(const std::vector<Result>& results, int horizon) {
  std::vector<double> gaps, relative;
  int proven = 0;
  for (const Result& result : results) {
    if (horizon >= 0 && result.horizon != horizon) continue;
    proven += result.proven;
    gaps.push_back(result.gap);
    relative.push_back(result.relative);
  }
  std::printf("| %s | %zu | %d | %.3f | %.3f | %.3f | %.3f | %.2f | %.2f |\n",
              horizon < 0 ? "all" : std::to_string(horizon).c_str(), gaps.size(), proven, Quantile(gaps, 0.5),
              Quantile(gaps, 0.9), Quantile(gaps, 0.95), Quantile(gaps, 1), Quantile(relative, 0.5),
              Quantile(relative, 0.95));
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bfio_gap_report TRACE [INSTANCES=300] [SECONDS=20] [JOBS JOB]\n");
    return 2;
  }
  const auto trace = ReadTrace(argv[1]);
  if (!trace.ok()) {
    std::fprintf(stderr, "%s\n", trace.status().ToString().c_str());
    return 1;
  }
  const int wanted = argc > 2 ? std::atoi(argv[2]) : 300;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 20;
  const int jobs = argc > 5 ? std::atoi(argv[4]) : 1, job = argc > 5 ? std::atoi(argv[5]) : 0;
  std::vector<Result> results;
  int configuration = 0, number = 0;
  constexpr int kConfigurations = 27;
  for (int32_t workers : {8, 12, 16}) {
    for (int64_t waiting : {32, 64, 128}) {
      for (int32_t horizon : {0, 10, 20}) {
        const int count = wanted / kConfigurations + (configuration++ < wanted % kConfigurations ? 1 : 0);
        Collect(
            {workers, 72, horizon, waiting}, *trace, count, seconds, [&] { return number++ % jobs == job; },
            results);
      }
    }
  }
  std::printf("| H | instances | proven | gap p50, %% | p90 | p95 | max | of J* p50, %% | p95 |\n");
  for (int horizon : {0, 10, 20, -1}) Print(results, horizon);
  return 0;
}

}  // namespace
}  // namespace bfio::testing

int main(int argc, char** argv) {
  return bfio::testing::Main(argc, argv);
}
