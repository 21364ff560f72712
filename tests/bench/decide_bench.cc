// The duration of one decision.
//
// Workload: a group in overload as in the simulator: every worker is full except for the slots that
// completions of one step free (one in 200 residents), loads around 72 requests of about 1,100 tokens, a pool
// of long-tailed requests.
//   small  G =  16, B = 72, |waiting| =   128
//   large  G = 256, B = 72, |waiting| = 1,024
// prompts   the same groups, with ranks in a barrier that compute prompts up to a level (Snapshot::prefill)
// Spare     bf_io_auto with slots for all, 40 of 72 taken, by each of its rules, with the lengths of the
//           profile burstgpt; every decision is about new requests. "within 1 ms": with a deadline.
//           "outlook": the input of the horizon rule, if one worker in four has changed residents
// Replay    RuleChooser::Step with all three rules, at 40 of 72 slots with the same lengths
// Prefixes  least_work on the same groups; prompts begin with one of 500 prefixes of 50 blocks, of which a
//           worker has a tenth
// Release   PlanRelease on the same groups, in front of engines with a budget of 2,048 tokens. "cached":
//           half of each prompt is in the caches of a tenth of the ranks, for as many prompts as the policy
//           looks up
// per_pair_ns is the time over U * |waiting|; it shows whether time scales with the number of pairs.
// p99_us is processor time, which other processes on the machine do not affect.
#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "common/workload/trace.h"
#include "router/core/admission/kv_admission.h"
#include "router/core/choice/rule_chooser.h"
#include "router/core/lookahead/far_outlook.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/policy.h"
#include "router/core/prefill/prefill_view.h"
#include "router/core/prefill/release_planner.h"
#include "router/core/prefix/prefix_view.h"
#include "router/core/scheduler/virtual_fcfs.h"

namespace bfio::core {
namespace {

constexpr int kBatch = 72;
constexpr int64_t kKv = int64_t{1} << 40;
constexpr int kVariants = 64;

struct Case {
  std::vector<WorkerView> workers;
  std::vector<WaitingView> waiting;
  int64_t free_slots = 0;
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
    result.free_slots += freed;
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

// Processor time of this thread.
double NowMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Measures calls and reports the 99th percentile.
class Calls {
 public:
  template <class Call>
  void Time(Call call) {
    const double start = NowMicroseconds();
    call();
    us_.push_back(NowMicroseconds() - start);
  }
  void Report(benchmark::State& state) {
    const auto at = us_.begin() + static_cast<std::ptrdiff_t>(0.99 * static_cast<double>(us_.size() - 1));
    std::nth_element(us_.begin(), at, us_.end());
    state.counters["p99_us"] = *at;
  }

 private:
  std::vector<double> us_;
};

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

void BM_Decide(benchmark::State& state, const char* name, const char* objective, bool prompts) {
  PolicyOptions options;
  options.objective = objective;
  const auto policy = *MakePolicy(name, options);
  Rng rng(5);
  std::vector<Case> cases;
  for (int i = 0; i < kVariants; ++i) {
    cases.push_back(
        MakeCase(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), rng, prompts));
  }
  Decision decision;
  VirtualFcfs first_come;
  Snapshot snapshot;
  snapshot.step = state.range(1) / 5;
  size_t next = 0;
  double pairs = 0;
  Calls calls;
  for (auto _ : state) {
    const Case& current = cases[next++ % cases.size()];
    snapshot.workers = current.workers;
    snapshot.waiting = current.waiting;
    snapshot.prefill = prompts ? &current.prefill : nullptr;
    calls.Time([&] { Decide(*policy, snapshot, first_come, decision); });
    pairs += static_cast<double>(current.free_slots * state.range(1));
  }
  calls.Report(state);
  state.counters["per_pair"] =
      benchmark::Counter(pairs, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_Prefixes(benchmark::State& state) {
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
  std::vector<Case> cases;
  for (int i = 0; i < kVariants; ++i) {
    Case& made = cases.emplace_back(MakeCase(workers, static_cast<int>(state.range(1)), rng));
    for (WaitingView& request : made.waiting) {
      request.prefix = prefixes[rng.Below(kPrefixes)];
      request.prefill_tokens = 5'000;
    }
  }
  PrefixView view;
  view.caches = &caches;
  view.pending.assign(static_cast<size_t>(workers), 500);
  view.output_tokens = 250;
  const auto policy = *MakePolicy("least_work", {});
  const ClassWait wait = {0, 1 << 20, 1 << 20};
  Decision decision;
  size_t next = 0;
  Calls calls;
  for (auto _ : state) {
    const Case& current = cases[next++ % cases.size()];
    Snapshot snapshot;
    snapshot.step = state.range(1) / 5;
    snapshot.workers = current.workers;
    snapshot.waiting = current.waiting;
    snapshot.prefixes = &view;
    snapshot.first_come = absl::MakeConstSpan(&wait, 1);
    decision.Clear();
    calls.Time([&] { policy->Decide(snapshot, decision); });
    benchmark::DoNotOptimize(decision.assignments.data());
  }
  calls.Report(state);
}

void BM_Release(benchmark::State& state, bool cached) {
  Rng rng(5);
  const auto ranks = static_cast<size_t>(state.range(0));
  std::vector<Case> cases;
  for (int i = 0; i < kVariants; ++i) {
    cases.push_back(MakeCase(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), rng, true));
    for (size_t g = 0; g < cases.back().workers.size(); ++g) {
      cases.back().prefill.ranks[g].free_slots = 64;
    }
  }
  size_t next = 0;
  double placed = 0;
  // MeteredPolicy looks up this many pairs of a prompt and a rank.
  std::vector<int64_t> held(cached ? 4'096 : 0);
  Calls calls;
  for (auto _ : state) {
    const Case& current = cases[next++ % cases.size()];
    std::vector<WaitingPrompt> waiting;
    for (const WaitingView& request : current.waiting) {
      waiting.push_back({request.prefill_tokens, 0.01 * static_cast<double>(request.id)});
      if (waiting.size() * ranks > held.size()) continue;
      const absl::Span<int64_t> of = absl::MakeSpan(held).subspan((waiting.size() - 1) * ranks, ranks);
      for (int64_t& tokens : of) tokens = rng.Below(10) == 0 ? request.prefill_tokens / 2 : 0;
      waiting.back().cached = of;
    }
    calls.Time([&] {
      const auto bindings = PlanRelease(current.prefill.ranks, waiting, current.prefill.traffic, {});
      placed += static_cast<double>(bindings.size());
    });
  }
  calls.Report(state);
  state.counters["placed"] = placed / static_cast<double>(next);
}

// A group that is short of KV memory, with 43 requests per worker: the time of kv_feasible to determine who
// fits where, and of bf_io_auto to decide with it. Lengths are geometric with mean 250, and have been learnt.
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
    pool = MakeCase(workers, waiting, rng);
    for (WaitingView& request : pool.waiting) request.max_new_tokens = 1'000;
    for (size_t g = 0; g < residents.size(); ++g) {
      KvAdmission::Worker worker;
      worker.residents = residents[g];
      worker.time = {1'000, 1'001};
      for (const Resident& resident : residents[g])
        worker.load_tokens += resident.prefill_tokens + 1'001 - resident.first_step;
      worker.kv_tokens = worker.load_tokens + static_cast<int64_t>(rng.Below(6'000));
      admission_workers.push_back(worker);
      pool.workers[g] = {worker.load_tokens, 43, kBatch - 43, 0, worker.kv_tokens};
    }
  }

  std::unique_ptr<Lookahead> lookahead;
  RequestId id = 0;
  std::vector<std::vector<Resident>> residents;
  Case pool;
  std::vector<KvAdmission::Worker> admission_workers;
};

enum class KvCall { kLook, kDecide, kDecideWithin1ms };
void BM_Kv(benchmark::State& state, KvCall call) {
  KvCase of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  KvAdmission admission(*ParseKvAdmission("kv_feasible"));
  double start = 0;
  PolicyOptions options;
  if (call == KvCall::kDecideWithin1ms) options.stop = [&] { return NowMicroseconds() > start + 1'000; };
  const auto policy = *MakePolicy("bf_io_auto", options);
  Snapshot snapshot;
  snapshot.step = state.range(1) / 5;
  snapshot.workers = of.pool.workers;
  snapshot.waiting = of.pool.waiting;
  snapshot.kv = admission.MakeOutlook(*of.lookahead, of.admission_workers, absl::MakeSpan(of.pool.waiting));
  Decision decision;
  VirtualFcfs first_come;
  Calls calls;
  for (auto _ : state) {
    start = NowMicroseconds();
    calls.Time([&] {
      if (call != KvCall::kLook) return Decide(*policy, snapshot, first_come, decision);
      snapshot.kv =
          admission.MakeOutlook(*of.lookahead, of.admission_workers, absl::MakeSpan(of.pool.waiting));
      benchmark::DoNotOptimize(snapshot.kv.capacity.data());
    });
  }
  calls.Report(state);
  state.counters["placed"] = static_cast<double>(decision.assignments.size());
}

// The time to compute the memory left on each of 16 workers. Lengths are known; since the previous plan a
// hundredth of the requests has ended and been replaced. From the incremental books, or from all residents.
// The first residents of each worker are unsettled: their starts are unreported or their prompts uncomputed.
void BM_KnownKv(benchmark::State& state, const char* text) {
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
  Calls calls;
  for (auto _ : state) {
    for (size_t g = 0; g < kWorkers; ++g) {
      workers[g].residents = residents[g];
      workers[g].time = time;
      workers[g].kv_tokens = 1 << 30;
      workers[g].changes = &changes[g];
    }
    calls.Time([&] { benchmark::DoNotOptimize(admission.MakeOutlook(*lookahead, workers, {&waiting, 1})); });
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
    }
  }
  calls.Report(state);
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
void BM_Spare(benchmark::State& state, std::optional<PlacementRule> rule, bool within_1ms) {
  SpareCase of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  double start = 0;
  PolicyOptions options;
  if (within_1ms) options.stop = [&] { return NowMicroseconds() > start + 1'000; };
  const auto policy = *MakePolicy("bf_io_auto", options);
  Snapshot snapshot;
  snapshot.step = of.step;
  snapshot.workers = of.pool.workers;
  snapshot.waiting = of.pool.waiting;
  of.MakeOutlook();
  snapshot.far = of.far.View();
  Decision decision;
  VirtualFcfs first_come;
  Calls calls;
  for (auto _ : state) {
    of.Renew();
    start = NowMicroseconds();
    calls.Time([&] {
      if (!rule) return of.MakeOutlook();
      snapshot.rule = *rule;
      Decide(*policy, snapshot, first_come, decision);
    });
  }
  calls.Report(state);
  state.counters["placed"] = static_cast<double>(decision.assignments.size());
}

void BM_Replay(benchmark::State& state) {
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
  Calls calls;
  for (auto _ : state) calls.Time(step);
  calls.Report(state);
}

void RegisterAll() {
  const auto add_spare = [](const char* name, std::optional<PlacementRule> rule, bool within_1ms = false) {
    benchmark::RegisterBenchmark(absl::StrCat("Spare/", name).c_str(), BM_Spare, rule, within_1ms)
        ->Args({16, 8})
        ->Args({256, 64})
        ->Args({256, 1024})
        ->ArgNames({"G", "waiting"})
        ->Unit(benchmark::kMicrosecond);
  };
  add_spare("headroom", PlacementRule::kHeadroom);
  add_spare("horizon", PlacementRule::kHorizon);
  add_spare("horizon within 1 ms", PlacementRule::kHorizon, true);
  add_spare("counts", PlacementRule::kCounts);
  add_spare("outlook", std::nullopt);
  benchmark::RegisterBenchmark("Replay", BM_Replay)
      ->Arg(4)
      ->Arg(16)
      ->Arg(256)
      ->ArgName("G")
      ->Unit(benchmark::kMicrosecond);
  for (const char* admission : {"mc_sf", "kv_feasible"}) {
    benchmark::RegisterBenchmark(absl::StrCat("KnownKv/", admission).c_str(), BM_KnownKv, admission)
        ->Args({43, 400, 0})
        ->Args({400, 400, 0})
        ->Args({4'000, 400, 0})
        ->Args({72, 65'536, 4})
        ->Args({512, 65'536, 4})
        ->ArgNames({"residents", "length", "unsettled"})
        ->Unit(benchmark::kMicrosecond);
  }
  const auto add_kv = [](const char* name, KvCall call) {
    benchmark::RegisterBenchmark(name, BM_Kv, call)
        ->Args({16, 128})
        ->Args({256, 1024})
        ->Args({256, 10'000})
        ->ArgNames({"G", "waiting"})
        ->Unit(benchmark::kMicrosecond);
  };
  add_kv("KvFeasible/look", KvCall::kLook);
  add_kv("KvFeasible/decide", KvCall::kDecide);
  add_kv("KvFeasible/decide_1ms", KvCall::kDecideWithin1ms);
  for (const bool cached : {false, true}) {
    benchmark::RegisterBenchmark(cached ? "Release/cached" : "Release", BM_Release, cached)
        ->Args({16, 128})
        ->Args({256, 1024})
        ->Args({256, 16'384})
        ->ArgNames({"G", "waiting"})
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RegisterBenchmark("Prefixes", BM_Prefixes)
      ->Args({16, 1})
      ->Args({16, 128})
      ->Args({256, 1})
      ->Args({256, 1024})
      ->ArgNames({"G", "waiting"})
      ->Unit(benchmark::kMicrosecond);
  const auto add = [](const char* policy, const char* objective, bool prompts = false) {
    const std::string name = std::string("Decide/") + policy + (policy == std::string("bf_io") ? "/" : "") +
                             objective + (prompts ? "/prompts" : "");
    benchmark::RegisterBenchmark(name.c_str(), BM_Decide, policy,
                                 policy == std::string("bf_io") ? objective : "square", prompts)
        ->Args({16, 128})
        ->Args({256, 1024})
        ->ArgNames({"G", "waiting"})
        ->Unit(benchmark::kMicrosecond);
  };
  for (const PolicyInfo& info : RegisteredPolicies()) {
    if (info.name != "bf_io") add(info.name.data(), "");
  }
  add("bf_io_auto", "", true);
  add("bf_io", "square");
  add("bf_io", "square", true);
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
