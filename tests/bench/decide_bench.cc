// How long one decision takes.
//
// Workload: a group in overload as the simulator has it: every worker is full but for the slots that
// completions of one step free (one in 200 residents), loads around 72 requests of about 1,100 tokens, a pool
// of long-tailed requests.
//   small  G =  16, B = 72, |waiting| =   128
//   large  G = 256, B = 72, |waiting| = 1,024
// per_pair_ns is the time over U * |waiting|: it tells whether the large case scales with the number of pairs
// looked at.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/policy.h"

namespace bfio::core {
namespace {

constexpr int kBatch = 72;
constexpr int64_t kKv = int64_t{1} << 40;
constexpr int kVariants = 64;

struct Case {
  std::vector<WorkerView> workers;
  std::vector<WaitingView> waiting;
  int64_t free_slots = 0;
};

Case MakeCase(int workers, int waiting, Rng& rng) {
  Case result;
  for (int g = 0; g < workers; ++g) {
    int32_t freed = 0;
    for (int slot = 0; slot < kBatch; ++slot) freed += rng.Below(200) == 0 ? 1 : 0;
    const int64_t load = 80'000 + static_cast<int64_t>(rng.Normal() * 500) - 1'400 * freed;
    result.workers.push_back({load, kBatch - freed, freed, kKv});
    result.free_slots += freed;
  }
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

void BM_Decide(benchmark::State& state, const char* name, const char* objective) {
  PolicyOptions options;
  options.objective = objective;
  const auto policy = *MakePolicy(name, options);
  Rng rng(5);
  std::vector<Case> cases;
  for (int i = 0; i < kVariants; ++i) {
    cases.push_back(MakeCase(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), rng));
  }
  std::vector<Assignment> plan;
  size_t next = 0;
  double pairs = 0;
  for (auto _ : state) {
    const Case& current = cases[next++ % cases.size()];
    plan.clear();
    policy->Decide({state.range(1) / 5, current.workers, current.waiting}, plan);
    benchmark::DoNotOptimize(plan.data());
    pairs += static_cast<double>(current.free_slots * state.range(1));
  }
  state.counters["per_pair"] =
      benchmark::Counter(pairs, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void RegisterAll() {
  const auto add = [](const char* policy, const char* objective) {
    const std::string name =
        std::string("Decide/") + policy + (policy == std::string("bf_io") ? "/" : "") + objective;
    benchmark::RegisterBenchmark(name.c_str(), BM_Decide, policy,
                                 policy == std::string("bf_io") ? objective : "square")
        ->Args({16, 128})
        ->Args({256, 1024})
        ->ArgNames({"G", "waiting"})
        ->Unit(benchmark::kMicrosecond);
  };
  for (const PolicyInfo& info : RegisteredPolicies()) {
    if (info.name != "bf_io") add(info.name.data(), "");
  }
  add("bf_io", "square");
  add("bf_io", "paper");
}

}  // namespace
}  // namespace bfio::core

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  bfio::core::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
