// bfio_loop_report: the paper's J in closed loop, decided by CBC and by the solver.
//
// Simulates overload on a trace (overload.h; G = 16, B = 72, 128 waiting, H = 0) twice, with every decision
// by CBC and with every decision by the solver, and prints the mean imbalance, in tokens, over the steps
// after the warm-up. For decisions that CBC did not prove optimal within its time, its best plan is used.
//
// Usage: bfio_loop_report TRACE [STEPS=3000] [SECONDS=3]
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/workload/trace.h"
#include "research/solver/cbc.h"
#include "research/solver/lp_export.h"
#include "research/solver/overload.h"
#include "router/core/solver/solver.h"

namespace bfio::testing {
namespace {

constexpr int kWarmup = 500;

double Loop(const Trace& trace, int steps, const Overload::Decide& decide) {
  Overload overload({16, 72, 0, 128}, trace);
  double sum = 0;
  for (int step = 0; step < kWarmup + steps; ++step) {
    const double imbalance = overload.Step(decide);
    if (step >= kWarmup) sum += imbalance / steps;
  }
  return sum;
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bfio_loop_report TRACE [STEPS=3000] [SECONDS=3]\n");
    return 2;
  }
  const auto trace = ReadTrace(argv[1]);
  if (!trace.ok()) {
    std::fprintf(stderr, "%s\n", trace.status().ToString().c_str());
    return 1;
  }
  const int steps = argc > 2 ? std::atoi(argv[2]) : 3000;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 3;
  core::SolverSettings settings;
  settings.objective = core::ObjectiveKind::kPaper;
  core::Solver solver(settings);
  std::printf("solver: %.0f tokens\n",
              Loop(*trace, steps, [&](const core::Instance& instance) -> const core::Solution& {
                return solver.Solve(instance);
              }));
  core::Solution solution;
  int unproven = 0;
  const double cbc = Loop(*trace, steps, [&](const core::Instance& instance) -> const core::Solution& {
    std::string lp;
    if (!sim::AppendLp(instance, settings.objective, {}, lp).ok()) return solver.Solve(instance);
    const auto answer = SolveWithCbc(lp, instance, seconds);
    unproven += answer.ok() && answer->optimal ? 0 : 1;
    if (!answer.ok() || !answer->found) return solver.Solve(instance);
    return solution = answer->solution;
  });
  std::printf("CBC: %.0f tokens, %d decisions not proven\n", cbc, unproven);
  return 0;
}

}  // namespace
}  // namespace bfio::testing

int main(int argc, char** argv) {
  return bfio::testing::Main(argc, argv);
}
