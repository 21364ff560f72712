// CPU time of a step of the sim engine, without its sleep: the cost of a simulated worker for its machine.
//
//   bfio_sim_engine_bench
//
// One item is one resident in one step; a request that ends is replaced by a new one, so admissions are
// included.
#include <cstdint>
#include <memory>
#include <optional>

#include "benchmark/benchmark.h"
#include "common/base/rng.h"
#include "worker/engine/sim/sim_engine.h"

namespace bfio::worker {
namespace {

class NoTimer final : public StepTimer {
 public:
  int64_t NowNs() override { return 0; }
  void SleepUntilNs(int64_t) override {}
};

// `ids`: prompts are token ids, as from a client, instead of a length.
void FillSlots(Engine& engine, Rng& rng, bool ids, Handle& next) {
  while (engine.free_slots() > 0) {
    SequenceRequest request;
    request.handle = next++;
    request.prompt_length = static_cast<int64_t>(1 + rng.Below(4000));
    request.max_new_tokens = static_cast<int64_t>(1 + rng.Below(400));
    if (ids) request.prompt.assign(static_cast<size_t>(request.prompt_length), 7);
    if (!engine.Admit(request).ok()) return;
  }
}

void BM_Step(benchmark::State& state, bool ids, std::optional<BatchPlannerOptions> plan) {
  SimOptions options;
  options.limits = {static_cast<int32_t>(state.range(0)), 1 << 24, 1 << 18};
  options.plan = plan;
  auto engine = *MakeSimEngine(options, std::make_unique<NoTimer>());
  Rng rng(1);
  Handle next = 1;
  StepOutput out;
  for (auto _ : state) {
    FillSlots(*engine, rng, ids, next);
    if (!engine->Step(out).ok()) state.SkipWithError("the step failed");
  }
  state.SetItemsProcessed(state.iterations() * engine->limits().slots);
}
BENCHMARK_CAPTURE(BM_Step, whole_prompts, false, std::nullopt)
    ->Arg(72)
    ->Arg(256)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(BM_Step, prompt_ids, true, std::nullopt)->Arg(72)->Arg(256)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(BM_Step, chunked_prefill, false, BatchPlannerOptions{.token_budget = 2048})
    ->Arg(72)
    ->Arg(256)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace bfio::worker

BENCHMARK_MAIN();
