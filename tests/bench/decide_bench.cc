// The duration of one decision.
//
// Workload: a group in overload as in the simulator: every worker is full except for the slots that
// completions of one step free (one in 200 residents), loads around 72 requests of about 1,100 tokens, a pool
// of long-tailed requests. Times are those of single calls, in processor time.
// Decide    Policy::Decide. "prompts": ranks in a barrier that compute prompts up to a level
//           (Snapshot::prefill)
// Prefixes  least_work on the same groups; prompts begin with one of 500 prefixes of 50 blocks, of which a
//           worker has a tenth
// Release   PlanPrefill on the same groups, in front of engines with a budget of 2,048 tokens. "cached":
//           half of each prompt is in the caches of a tenth of the ranks, for as many prompts as the policy
//           looks up
// Spare     bf_io_auto with slots for all, 40 of 72 taken, by each of its rules, with the lengths of the
//           profile burstgpt; every decision is about new requests. "within_1ms": with a deadline.
//           "outlook": the input of the horizon rule, if one worker in four has changed residents
// Replay    RuleChooser::Step with all three rules, at 40 of 72 slots with the same lengths
#include <benchmark/benchmark.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "common/workload/trace.h"
#include "router/core/choice/rule_chooser.h"
#include "router/core/lookahead/far_outlook.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/policy.h"
#include "router/core/prefill/prefill_planner.h"
#include "router/core/prefill/prefill_view.h"
#include "router/core/prefix/prefix_view.h"
#include "router/core/scheduler/virtual_fcfs.h"
#include "tests/bench/call_times.h"

namespace bfio::core {
namespace {

using bench::Measure;

constexpr int kBatch = 72;
constexpr int64_t kKv = int64_t{1} << 40;

struct Case {
  std::vector<WorkerView> workers;
  std::vector<WaitingView> waiting;
  PrefillView prefill;
};

// `prompts`: workers compute prompts in chunks, and every fourth one has a prompt to compute.
Case MakeCase(int workers, int waiting, Rng& rng, bool prompts = false) {
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
std::vector<Case> Cases(const benchmark::State& state, Rng& rng, bool prompts = false) {
  std::vector<Case> cases;
  while (cases.size() < 64)
    cases.push_back(
        MakeCase(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), rng, prompts));
  return cases;
}

std::unique_ptr<Policy> PolicyOf(const char* name, bool within_1ms = false,
                                 const char* objective = "square") {
  PolicyOptions options;
  options.objective = objective;
  if (within_1ms) options.stop = [] { return bench::NowMicroseconds() > bench::call_began_us + 1'000; };
  return *MakePolicy(name, options);
}

// Decides as a scheduler does: admissions count for the reference waits.
void Decide(Policy& policy, Snapshot& snapshot, VirtualFcfs& first_come, Decision& decision) {
  decision.Clear();
  const ClassWait wait = {0, first_come.p99(), first_come.long_run_p99()};
  snapshot.first_come = absl::MakeConstSpan(&wait, 1);
  policy.Decide(snapshot, decision);
  benchmark::DoNotOptimize(decision.assignments.data());
  if (!policy.uses_first_come_waits()) return;
  while (first_come.size() < static_cast<int64_t>(snapshot.waiting.size())) first_come.Arrive(snapshot.step);
  first_come.Decide(snapshot.step, static_cast<int64_t>(decision.assignments.size()));
}

// Decisions about each of the cases in turn.
void MeasureCases(benchmark::State& state, Policy& policy, const std::vector<Case>& cases, bool prompts,
                  const PrefixView* prefixes = nullptr) {
  Decision decision;
  VirtualFcfs first_come;
  Snapshot snapshot;
  snapshot.step = state.range(1) / 5;
  snapshot.prefixes = prefixes;
  size_t next = 0;
  const auto prepare = [&] {
    const Case& current = cases[next++ % cases.size()];
    snapshot.workers = current.workers;
    snapshot.waiting = current.waiting;
    snapshot.prefill = prompts ? &current.prefill : nullptr;
  };
  if (prefixes == nullptr)
    return Measure(state, prepare, [&] { Decide(policy, snapshot, first_come, decision); });
  // Nobody has waited longer than under first come, first served.
  const ClassWait wait = {0, 1 << 20, 1 << 20};
  snapshot.first_come = absl::MakeConstSpan(&wait, 1);
  Measure(state, prepare, [&] {
    decision.Clear();
    policy.Decide(snapshot, decision);
    benchmark::DoNotOptimize(decision.assignments.data());
  });
}

void BM_Decide(benchmark::State& state, const char* name, const char* objective, bool prompts) {
  Rng rng(5);
  MeasureCases(state, *PolicyOf(name, false, objective), Cases(state, rng, prompts), prompts);
}

void Prefixes(benchmark::State& state) {
  constexpr int kPrefixes = 500, kBlocks = 50;
  Rng rng(5);
  const auto workers = static_cast<int>(state.range(0));
  std::vector<std::vector<uint64_t>> prefixes(kPrefixes);
  for (size_t p = 0; p < prefixes.size(); ++p) {
    for (uint64_t block = 1; block <= kBlocks; ++block) prefixes[p].push_back((p << 20) + block);
  }
  const std::vector<PrefixCaches::Member> members(static_cast<size_t>(workers), {0, true, int64_t{1} << 30});
  PrefixCaches caches;
  caches.Open(members);
  for (const std::vector<uint64_t>& prefix : prefixes) {
    for (WorkerIndex g = 0; g < workers; ++g)
      if (rng.Below(10) == 0) caches.Placed(g, prefix, 5'000);
  }
  std::vector<Case> cases = Cases(state, rng);
  for (Case& made : cases) {
    for (WaitingView& request : made.waiting) {
      request.prefix = prefixes[rng.Below(kPrefixes)];
      request.prefill_tokens = 5'000;
    }
  }
  PrefixView view;
  view.caches = &caches;
  view.pending.assign(static_cast<size_t>(workers), 500);
  view.output_tokens = 250;
  MeasureCases(state, *PolicyOf("least_work"), cases, false, &view);
}

void Release(benchmark::State& state, bool cached) {
  Rng rng(5);
  const auto ranks = static_cast<size_t>(state.range(0));
  std::vector<Case> cases = Cases(state, rng, true);
  for (Case& made : cases) {
    for (PrefillRank& rank : made.prefill.ranks) rank.free_slots = 64;
  }
  size_t next = 0;
  double placed = 0;
  // MeteredPolicy looks up this many pairs of a prompt and a rank.
  std::vector<int64_t> held(cached ? 4'096 : 0);
  const Case* current = nullptr;
  std::vector<WaitingPrompt> waiting;
  const auto prepare = [&] {
    current = &cases[next++ % cases.size()];
    waiting.clear();
    for (const WaitingView& request : current->waiting) {
      waiting.push_back({request.prefill_tokens, 0.01 * static_cast<double>(request.id)});
      if (waiting.size() * ranks > held.size()) continue;
      const absl::Span<int64_t> of = absl::MakeSpan(held).subspan((waiting.size() - 1) * ranks, ranks);
      for (int64_t& tokens : of) tokens = rng.Below(10) == 0 ? request.prefill_tokens / 2 : 0;
      waiting.back().cached = of;
    }
  };
  Measure(state, prepare, [&] {
    const PrefillDecision decision =
        PlanPrefill(current->prefill.ranks, waiting, current->prefill.traffic, {}, {.step_tokens = 2048});
    placed += static_cast<double>(decision.bindings.size());
  });
  state.counters["placed"] = placed / static_cast<double>(next);
}

// A group with free slots, and what its lookahead has learnt of lengths.
struct SpareCase {
  static constexpr int kTaken = 40;

  SpareCase(int workers, int waiting)
      : lengths(SampleProfile("burstgpt", 1 << 14, 9)->requests), lookahead(*MakeLookahead("survival")) {
    for (int i = 0; i < 4096; ++i) {
      const auto [resident, output] = Draw();
      lookahead->Observe(resident, {}, 0, output, true);
      lookahead->Advance();
      ended.Add(resident, output);
    }
    residents.resize(static_cast<size_t>(workers));
    for (auto& of : residents) {
      WorkerView& view = pool.workers.emplace_back();
      while (of.size() < kTaken) {
        // A request is resident at a random time with a probability in proportion to its output.
        auto [resident, output] = Draw();
        if (output <= static_cast<int64_t>(rng.Below(kLongest))) continue;
        resident.first_step = step - static_cast<int64_t>(rng.Below(static_cast<uint64_t>(output)));
        view.load_tokens += resident.prefill_tokens + step - resident.first_step;
        of.push_back(resident);
      }
      view.active = kTaken;
      view.free_slots = kBatch - kTaken;
      view.free_kv_tokens = kKv;
    }
    for (int i = 0; i < waiting; ++i) {
      WaitingView& request = pool.waiting.emplace_back();
      request.prefill_tokens = Draw().first.prefill_tokens;
      request.max_new_tokens = kLongest;
      request.enqueued_step = step;
    }
    Renew();
  }

  std::pair<Resident, int64_t> Draw() {
    const TraceRequest& from = lengths[next++ % lengths.size()];
    Resident resident;
    resident.id = ++id;
    resident.prefill_tokens = from.prompt_tokens;
    resident.max_new_tokens = kLongest;
    resident.group = lookahead->GroupOf(0, resident.prefill_tokens);
    return {resident, from.output_tokens};
  }
  // Replaces the waiting requests by new ones of the same lengths.
  void Renew() {
    for (WaitingView& request : pool.waiting) request.id = ++id;
  }

  void MakeOutlook() {
    far.Begin(static_cast<int32_t>(residents.size()));
    for (size_t g = 0; g < residents.size(); ++g) {
      const int64_t version = (step + static_cast<int64_t>(g)) / 4;
      far.AddWorker(*lookahead, {residents[g], {step - 1, step}, version, 1});
    }
    far.AddWaiting(*lookahead, pool.waiting);
    ++step;
  }

  static constexpr int64_t kLongest = 1'000;
  Rng rng{9};
  std::vector<TraceRequest> lengths;
  size_t next = 0;
  std::unique_ptr<Lookahead> lookahead;
  EndedRequests ended;
  RequestId id = 0;
  int64_t step = 10'000;
  std::vector<std::vector<Resident>> residents;
  Case pool;
  FarOutlookBuilder far;
};

// `rule`: the placement rule whose decision is timed; without a rule the outlook is timed.
void Spare(benchmark::State& state, std::optional<PlacementRule> rule, bool within_1ms = false) {
  SpareCase of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  const auto policy = PolicyOf("bf_io_auto", within_1ms);
  Snapshot snapshot;
  snapshot.step = of.step;
  snapshot.workers = of.pool.workers;
  snapshot.waiting = of.pool.waiting;
  snapshot.rule = rule.value_or(snapshot.rule);
  of.MakeOutlook();
  snapshot.far = of.far.View();
  Decision decision;
  VirtualFcfs first_come;
  Measure(
      state, [&] { of.Renew(); },
      [&] { rule ? Decide(*policy, snapshot, first_come, decision) : of.MakeOutlook(); });
  state.counters["placed"] = static_cast<double>(decision.assignments.size());
}

void Replay(benchmark::State& state) {
  SpareCase of(static_cast<int>(state.range(0)), 1);
  RuleChooser chooser;
  constexpr PlacementRule kRules[] = {PlacementRule::kHorizon, PlacementRule::kHeadroom,
                                      PlacementRule::kCounts};
  chooser.SetRules(kRules);
  double outputs = 0;
  for (const TraceRequest& request : of.lengths) outputs += static_cast<double>(request.output_tokens);
  const double mean = outputs / static_cast<double>(of.lengths.size());
  const double placed = static_cast<double>(state.range(0)) * SpareCase::kTaken / mean;
  const auto step = [&] { chooser.Step(*of.lookahead, of.ended, of.pool.workers, placed, mean / 2); };
  for (int i = 0; i < 3'000; ++i) step();
  Measure(
      state, [] {}, step);
}

void Groups(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"G", "waiting"})->Unit(benchmark::kMicrosecond)->UseManualTime();
}
void SpareGroups(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({16, 8})->Args({256, 64})->Args({256, 1024})->Apply(Groups);
}
BENCHMARK_CAPTURE(Spare, headroom, PlacementRule::kHeadroom)->Apply(SpareGroups);
BENCHMARK_CAPTURE(Spare, horizon, PlacementRule::kHorizon)->Apply(SpareGroups);
BENCHMARK_CAPTURE(Spare, horizon_within_1ms, PlacementRule::kHorizon, true)->Apply(SpareGroups);
BENCHMARK_CAPTURE(Spare, counts, PlacementRule::kCounts)->Apply(SpareGroups);
BENCHMARK_CAPTURE(Spare, outlook, std::nullopt)->Apply(SpareGroups);
BENCHMARK(Replay)->ArgName("G")->Arg(4)->Arg(16)->Arg(256)->Unit(benchmark::kMicrosecond)->UseManualTime();

void ReleaseGroups(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({16, 128})->Args({256, 1024})->Args({256, 16'384})->Apply(Groups);
}
BENCHMARK_CAPTURE(Release, whole, false)->Apply(ReleaseGroups);
BENCHMARK_CAPTURE(Release, cached, true)->Apply(ReleaseGroups);
BENCHMARK(Prefixes)->Args({16, 1})->Args({16, 128})->Args({256, 1})->Args({256, 1024})->Apply(Groups);

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
