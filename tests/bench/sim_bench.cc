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

// 100,000 requests through G = 16, B = 72 until all are done, as in the BF-IO paper's Table 1.
void BM_HundredThousandRequests(benchmark::State& state, const std::string& policy) {
  SimOptions options;
  options.policy = policy;
  options.warmup = 0;
  options.steps = 0;
  options.requests = kRequests;
  for (auto _ : state) {
    const auto run = (*Simulation::Create(options, drawn_requests))->Run();
    if (!run.ok()) state.SkipWithError("the run failed");
  }
  state.SetItemsProcessed(state.iterations() * kRequests);
}
BENCHMARK_CAPTURE(BM_HundredThousandRequests, fcfs, "fcfs")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_HundredThousandRequests, bf_io_auto, "bf_io_auto")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_HundredThousandRequests, bf_io, "bf_io")->Unit(benchmark::kMillisecond);

// Every slot of G workers taken for 2,000 steps.
void BM_RequestSteps(benchmark::State& state, const std::string& policy) {
  SimOptions options;
  options.policy = policy;
  options.workers = static_cast<int32_t>(state.range(0));
  options.reveal = 8 * options.workers;
  options.warmup = 0;
  options.steps = 2'000;
  int64_t request_steps = 0;
  for (auto _ : state) {
    const auto run = (*Simulation::Create(options, drawn_requests))->Run();
    if (!run.ok()) {
      state.SkipWithError("the run failed");
      break;
    }
    request_steps += run->at("request_steps").get<int64_t>();
  }
  state.counters["request_steps/s"] =
      benchmark::Counter(static_cast<double>(request_steps), benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(BM_RequestSteps, least_tokens, "least_tokens")
    ->Arg(16)
    ->Arg(64)
    ->Arg(256)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_RequestSteps, bf_io_auto, "bf_io_auto")->Arg(64)->Unit(benchmark::kMillisecond);

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
