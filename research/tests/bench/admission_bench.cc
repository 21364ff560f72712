#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "common/base/rng.h"
#include "router/core/admission/kv_admission.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/policy.h"
#include "tests/bench/call_times.h"

namespace bfio::core {
namespace {

constexpr int kBatch = 72;

// The time to compute the memory left on each of 16 workers. Lengths are known; since the previous plan a
// hundredth of the requests has ended and been replaced. From the incremental books, or from all residents.
// The first residents of each worker are unsettled: their starts are unreported or their prompts uncomputed.
void KnownKv(benchmark::State& state, const char* text) {
  constexpr size_t kWorkers = 16;
  const int64_t length = state.range(1);
  const auto lookahead = *MakeLookahead("max_tokens");
  KvAdmission admission(*ParseKvAdmission(text));
  const auto residents_each = static_cast<size_t>(state.range(0)),
             unsettled = static_cast<size_t>(state.range(2));
  Rng rng(4);
  RequestId id = 0;
  PlanTime time{length, length + 1};
  const auto resident = [&](int64_t first_step) {
    Resident one;
    one.id = ++id;
    one.prefill_tokens = 1 + static_cast<int64_t>(rng.Below(2'000));
    one.first_step = first_step;
    one.max_new_tokens = one.expected_tokens = length;
    return one;
  };
  std::vector<std::vector<Resident>> residents(kWorkers);
  std::vector<KvChanges> changes(kWorkers);
  std::vector<size_t> next(kWorkers, unsettled);
  const auto name = [&](size_t g, size_t i) {
    // Every other one is in flight; the others' prompts take four more steps.
    const bool inflight = i < unsettled && i % 2 == 0;
    residents[g][i].inflight = inflight;
    if (inflight) residents[g][i].first_step = time.plan_step;
    changes[g].changed.push_back({static_cast<int32_t>(i), i < unsettled && !inflight ? 4 : 0});
  };
  for (size_t g = 0; g < kWorkers; ++g) {
    changes[g].anew = true;
    for (size_t i = 0; i < residents_each; ++i) {
      residents[g].push_back(
          resident(time.plan_step - static_cast<int64_t>(rng.Below(static_cast<uint64_t>(length / 2)))));
      name(g, i);
    }
  }
  WaitingView waiting;
  waiting.prefill_tokens = 1'000;
  waiting.max_new_tokens = length;
  std::vector<KvAdmission::Worker> workers(kWorkers);
  for (size_t g = 0; g < kWorkers; ++g) {
    workers[g].residents = residents[g];
    workers[g].time = time;
    workers[g].kv_tokens = 1 << 30;
    workers[g].changes = &changes[g];
  }
  const auto call = [&] {
    benchmark::DoNotOptimize(admission.MakeOutlook(*lookahead, workers, {&waiting, 1}));
  };
  const auto next_plan = [&] {
    ++time.reported_step;
    ++time.plan_step;
    for (size_t g = 0; g < kWorkers; ++g) {
      changes[g].Clear();
      for (size_t n = 0; n < (residents_each + 99) / 100; ++n) {
        const size_t index = next[g]++;
        if (next[g] == residents_each) next[g] = unsettled;
        changes[g].gone.push_back(residents[g][index].id);
        residents[g][index] = resident(time.plan_step);
        name(g, index);
      }
      for (size_t i = 0; i < unsettled; ++i) name(g, i);
      workers[g].residents = residents[g];
      workers[g].time = time;
    }
  };
  call();  // reads the residents anew
  bench::Measure(state, next_plan, call);
}

// A group that is short of KV memory, with 43 requests per worker. Lengths are geometric with mean 250, and
// have been learnt.
struct KvCase {
  explicit KvCase(int workers, int waiting) : lookahead(*MakeLookahead("survival")) {
    Rng rng(9);
    residents.resize(static_cast<size_t>(workers));
    for (auto& of : residents) {
      for (int i = 0; i < 43; ++i) {
        Resident resident;
        resident.id = ++id;
        resident.prefill_tokens = 1 + static_cast<int64_t>(rng.Gamma(0.8) * 1'200);
        resident.first_step = 1'000 - static_cast<int64_t>(rng.Below(400));
        resident.max_new_tokens = 1'000;
        resident.group = lookahead->GroupOf(0, resident.prefill_tokens);
        of.push_back(resident);
        const auto length = 1 + static_cast<int64_t>(rng.Gamma(1) * 250);
        lookahead->Observe(resident, {}, 0, length, true);
      }
    }
    for (int i = 0; i < 256; ++i) lookahead->Advance();
    for (int i = 0; i < waiting; ++i) {
      WaitingView& request = pool.emplace_back();
      request.id = ++id;
      request.prefill_tokens = 1 + static_cast<int64_t>(rng.Gamma(0.8) * 1'200);
      request.kv_reserve_tokens = request.prefill_tokens + 300;
      request.max_new_tokens = 1'000;
      request.enqueued_step = i / 5;
    }
    for (size_t g = 0; g < residents.size(); ++g) {
      KvAdmission::Worker worker;
      worker.residents = residents[g];
      worker.time = {1'000, 1'001};
      for (const Resident& resident : residents[g])
        worker.load_tokens += resident.prefill_tokens + 1'001 - resident.first_step;
      worker.kv_tokens = worker.load_tokens + static_cast<int64_t>(rng.Below(6'000));
      admission_workers.push_back(worker);
      views.push_back({worker.load_tokens, 43, kBatch - 43, 0, worker.kv_tokens});
    }
  }

  std::unique_ptr<Lookahead> lookahead;
  RequestId id = 0;
  std::vector<std::vector<Resident>> residents;
  std::vector<WaitingView> pool;
  std::vector<WorkerView> views;
  std::vector<KvAdmission::Worker> admission_workers;
};

// `look`: the time of kv_feasible to determine who fits where; otherwise that of bf_io_auto to decide with
// it.
void KvFeasible(benchmark::State& state, bool look, bool within_1ms) {
  KvCase of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  KvAdmission admission(*ParseKvAdmission("kv_feasible"));
  PolicyOptions options;
  if (within_1ms) options.stop = [] { return bench::NowMicroseconds() > bench::call_began_us + 1'000; };
  const auto policy = *MakePolicy("bf_io_auto", options);
  Snapshot snapshot;
  snapshot.step = state.range(1) / 5;
  snapshot.workers = of.views;
  snapshot.waiting = of.pool;
  const auto make_outlook = [&] {
    snapshot.kv = admission.MakeOutlook(*of.lookahead, of.admission_workers, absl::MakeSpan(of.pool));
  };
  make_outlook();
  Decision decision;
  // Nobody has waited longer than under first come, first served.
  const ClassWait wait = {0, 1 << 20, 1 << 20};
  snapshot.first_come = absl::MakeConstSpan(&wait, 1);
  const auto decide = [&] {
    decision.Clear();
    policy->Decide(snapshot, decision);
  };
  bench::Measure(
      state, [] {}, [&] { look ? make_outlook() : decide(); });
  state.counters["placed"] = static_cast<double>(decision.assignments.size());
}

void Shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({43, 400, 0})->Args({400, 400, 0})->Args({4'000, 400, 0});
  benchmark->Args({72, 65'536, 4})->Args({512, 65'536, 4});
  benchmark->ArgNames({"residents", "length", "unsettled"})->Unit(benchmark::kMicrosecond)->UseManualTime();
}
BENCHMARK_CAPTURE(KnownKv, mc_sf, "mc_sf")->Apply(Shapes);
BENCHMARK_CAPTURE(KnownKv, kv_feasible, "kv_feasible")->Apply(Shapes);

void Groups(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({16, 128})->Args({256, 1024})->Args({256, 10'000})->ArgNames({"G", "waiting"});
  benchmark->Unit(benchmark::kMicrosecond)->UseManualTime();
}
BENCHMARK_CAPTURE(KvFeasible, look, true, false)->Apply(Groups);
BENCHMARK_CAPTURE(KvFeasible, decide, false, false)->Apply(Groups);
BENCHMARK_CAPTURE(KvFeasible, decide_1ms, false, true)->Apply(Groups);

}  // namespace
}  // namespace bfio::core

BENCHMARK_MAIN();
