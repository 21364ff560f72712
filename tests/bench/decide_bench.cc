// The duration of one decision.
//
// Workload: a group in overload as in the simulator: every worker is full except for the slots that
// completions of one step free (one in 200 residents), loads around 72 requests of about 1,100 tokens, a pool
// of long-tailed requests. Times are those of single calls, in processor time.
// "prompts": ranks in a barrier that compute prompts up to a level (Snapshot::prefill).
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/core/policy/policy.h"
#include "router/core/prefill/prefill_view.h"
#include "router/core/scheduler/virtual_fcfs.h"
#include "tests/bench/call_times.h"

namespace bfio::core {
namespace {

constexpr int kBatch = 72;
constexpr int64_t kKv = int64_t{1} << 40;

struct Case {
  std::vector<WorkerView> workers;
  std::vector<WaitingView> waiting;
  PrefillView prefill;
};

// `prompts`: workers compute prompts in chunks, and every fourth one has a prompt to compute.
Case MakeCase(int workers, int waiting, Rng& rng, bool prompts) {
  Case result;
  for (int g = 0; g < workers; ++g) {
    int32_t freed = 0;
    for (int slot = 0; slot < kBatch; ++slot) freed += rng.Below(200) == 0 ? 1 : 0;
    const int64_t load = 80'000 + static_cast<int64_t>(rng.Normal() * 500) - 1'400 * freed;
    result.workers.push_back({load, kBatch - freed, freed, kKv});
    if (prompts) {
      PrefillRank& rank = result.prefill.ranks.emplace_back();
      rank.cost = {.c_s = 18e-3, .a_s_per_token = 20e-6, .b0_tokens = 64, .k2_s_per_token = 6e-8};
      rank.decodes = kBatch - freed;
      rank.decode_context = static_cast<double>(load);
      if (g % 4 == 0) rank.prompts.push_back({1 + static_cast<int64_t>(rng.Below(2'000)), 100});
    }
  }
  result.prefill.traffic = {.arrivals_per_s = 300,
                            .mean_prompt_tokens = 960,
                            .mean_prefill_s = 0.019,
                            .mean_output_tokens = 250,
                            .step_s = 0.025,
                            .lag_steps = 1};
  for (int i = 0; i < waiting; ++i) {
    WaitingView request;
    request.id = static_cast<RequestId>(i + 1);
    request.prefill_tokens = 1 + static_cast<int64_t>(rng.Gamma(0.8) * 1'200);
    request.kv_reserve_tokens = request.prefill_tokens + 300;
    request.enqueued_step = i / 5;
    result.waiting.push_back(request);
  }
  return result;
}

// 64 groups of the size that the benchmark's arguments give.
std::vector<Case> Cases(const benchmark::State& state, Rng& rng, bool prompts) {
  std::vector<Case> cases;
  while (cases.size() < 64)
    cases.push_back(
        MakeCase(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), rng, prompts));
  return cases;
}

// Decides as a scheduler does: admissions count for the reference waits.
void Decide(Policy& policy, Snapshot& snapshot, VirtualFcfs& first_come, Decision& decision) {
  decision.Clear();
  const ClassWait wait = {0, first_come.p99(), first_come.long_run_p99()};
  snapshot.first_come = absl::MakeConstSpan(&wait, 1);
  policy.Decide(snapshot, decision);
  benchmark::DoNotOptimize(decision.assignments.data());
  while (first_come.size() < static_cast<int64_t>(snapshot.waiting.size())) first_come.Arrive(snapshot.step);
  first_come.Decide(snapshot.step, static_cast<int64_t>(decision.assignments.size()));
}

// Decisions about each of the cases in turn.
void BM_Decide(benchmark::State& state, const char* name, const char* objective, bool prompts) {
  Rng rng(5);
  const std::vector<Case> cases = Cases(state, rng, prompts);
  PolicyOptions options;
  options.objective = objective;
  const std::unique_ptr<Policy> policy = *MakePolicy(name, options);
  Decision decision;
  VirtualFcfs first_come;
  Snapshot snapshot;
  snapshot.step = state.range(1) / 5;
  size_t next = 0;
  const auto prepare = [&] {
    const Case& current = cases[next++ % cases.size()];
    snapshot.workers = current.workers;
    snapshot.waiting = current.waiting;
    snapshot.prefill = prompts ? &current.prefill : nullptr;
  };
  bench::Measure(state, prepare, [&] { Decide(*policy, snapshot, first_come, decision); });
}

void Groups(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"G", "waiting"})->Unit(benchmark::kMicrosecond)->UseManualTime();
}
// Every policy, some with prompts or another objective.
[[maybe_unused]] const bool registered = [] {
  const auto add = [](const std::string& policy, const char* objective, bool prompts) {
    benchmark::RegisterBenchmark(
        absl::StrCat("Decide/", policy, "/", objective, prompts ? "/prompts" : "").c_str(),
        [=](benchmark::State& state) { BM_Decide(state, policy.c_str(), objective, prompts); })
        ->Args({16, 128})
        ->Args({256, 1024})
        ->Apply(Groups);
  };
  for (const PolicyInfo& info : RegisteredPolicies()) add(std::string(info.name), "square", false);
  add("bf_io_auto", "square", true);
  add("bf_io", "square", true);
  add("bf_io", "paper", false);
  return true;
}();

}  // namespace
}  // namespace bfio::core

BENCHMARK_MAIN();
