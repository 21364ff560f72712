// The simulator's own speed: requests, and request-steps, per second and core.
//
//   bfio_sim_bench [TRACE]        # without TRACE the profile burstgpt
//
// One request-step is one active request in one step.
#include <cstdint>
#include <cstdio>
#include <string>

#include "benchmark/benchmark.h"
#include "common/workload/trace.h"
#include "nlohmann/json.hpp"
#include "tools/sim/run/simulation.h"

namespace bfio::sim {
namespace {

constexpr int64_t kRequests = 100'000;

Trace drawn_requests;

// Runs in each iteration; counts what `key` of the result has per second.
void Run(benchmark::State& state, SimOptions options, const char* policy, const char* key) {
  options.policy = policy;
  options.warmup = 0;
  int64_t done = 0;
  for (auto _ : state) {
    const auto run = (*Simulation::Create(options, drawn_requests))->Run();
    if (!run.ok()) return state.SkipWithError("the run failed");
    done += run->at(key).get<int64_t>();
  }
  state.counters[key] = benchmark::Counter(static_cast<double>(done), benchmark::Counter::kIsRate);
}

// 100,000 requests through G = 16, B = 72 until all are done, as in the BF-IO paper's Table 1.
void HundredThousandRequests(benchmark::State& state, const char* policy) {
  Run(state, {.steps = 0, .requests = kRequests}, policy, "completed");
}
BENCHMARK_CAPTURE(HundredThousandRequests, fcfs, "fcfs")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(HundredThousandRequests, bf_io_auto, "bf_io_auto")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(HundredThousandRequests, bf_io, "bf_io")->Unit(benchmark::kMillisecond);

// Every slot of G workers taken for 2,000 steps.
void RequestSteps(benchmark::State& state, const char* policy) {
  const auto workers = static_cast<int32_t>(state.range(0));
  Run(state, {.reveal = 8 * workers, .steps = 2'000, .workers = workers}, policy, "request_steps");
}
BENCHMARK_CAPTURE(RequestSteps, least_tokens, "least_tokens")
    ->Arg(16)
    ->Arg(64)
    ->Arg(256)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(RequestSteps, bf_io_auto, "bf_io_auto")->Arg(64)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace bfio::sim

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  using bfio::sim::drawn_requests;
  if (argc > 1) {
    absl::StatusOr<bfio::Trace> trace = bfio::ReadTrace(argv[1]);
    if (!trace.ok()) {
      fprintf(stderr, "bfio_sim_bench: %s\n", trace.status().ToString().c_str());
      return 2;
    }
    drawn_requests = bfio::DrawWithReplacement(*trace, bfio::sim::kRequests, 1);
  } else {
    drawn_requests = *bfio::SampleProfile("burstgpt", bfio::sim::kRequests, 1);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
