// The time to build the outlook of one decision.
//
// Workload: G workers with B residents each of random ages, lengths geometric with mean 200, the tables
// learned from 4,096 finished requests. One row per worker; the curves of the waiting requests are not
// included (one or two rows in total). per_resident is the time over G * B.
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::core {
namespace {

int64_t Length(Rng& rng) {
  return 1 + static_cast<int64_t>(200 * rng.Exponential());
}

void BM_Project(benchmark::State& state, const std::string& name) {
  const auto lookahead = *MakeLookahead(name);
  const int64_t workers = state.range(0), batch = state.range(1), columns = state.range(2) + 1;
  Rng rng(7);
  for (int i = 0; i < 4096; ++i) lookahead->Observe({}, {}, 0, Length(rng), true);
  for (int i = 0; i < 128; ++i) lookahead->Advance();
  std::vector<std::vector<Resident>> residents(static_cast<size_t>(workers));
  RequestId next = 1;
  for (auto& worker : residents) {
    for (int64_t i = 0; i < batch; ++i) {
      Resident r;
      r.id = next++;
      r.first_step = 1000 - Length(rng);
      r.prefill_tokens = 1 + static_cast<int64_t>(1000 * rng.Exponential());
      r.max_new_tokens = 2000;
      r.expected_tokens = 1000 - r.first_step + Length(rng);
      worker.push_back(r);
      if (lookahead->uses_hints()) {
        HintTrail trail;
        lookahead->Hint(worker.back(), trail, 1000 - r.first_step, 0.01 * rng.Uniform());
      }
    }
  }
  std::vector<double> load(static_cast<size_t>(workers * columns));
  for (auto _ : state) {
    for (int64_t g = 0; g < workers; ++g) {
      lookahead->Project(residents[g], {999, 1001}, absl::MakeSpan(load).subspan(g * columns, columns));
    }
    benchmark::DoNotOptimize(load.data());
    benchmark::ClobberMemory();
  }
  state.counters["per_resident"] =
      benchmark::Counter(static_cast<double>(state.iterations() * workers * batch),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// The cost of learning per step: every resident ages by a step, one in 200 finishes, and each is observed
// every 16 steps.
void BM_Learn(benchmark::State& state, const std::string& name) {
  const auto lookahead = *MakeLookahead(name);
  const int64_t count = state.range(0) * state.range(1);
  Rng rng(8);
  std::vector<int64_t> age(static_cast<size_t>(count)), seen(age.size(), 0);
  for (int64_t& a : age) a = Length(rng);
  seen = age;
  std::vector<Resident> residents(age.size());
  std::vector<HintTrail> trails(age.size());
  for (Resident& r : residents) r.max_new_tokens = 1 << 20;
  int64_t step = 0;
  for (auto _ : state) {
    ++step;
    for (size_t i = 0; i < age.size(); ++i) {
      ++age[i];
      if (rng.Below(200) == 0) {
        lookahead->Observe(residents[i], trails[i], seen[i], age[i], true);
        age[i] = seen[i] = 0;
        trails[i] = {};
      } else if ((i + static_cast<size_t>(step)) % 16 == 0) {
        lookahead->Observe(residents[i], trails[i], seen[i], age[i], false);
        seen[i] = age[i];
      }
      if (lookahead->uses_hints()) lookahead->Hint(residents[i], trails[i], age[i], 0.01);
    }
    lookahead->Advance();
  }
}

void RegisterAll() {
  for (const LookaheadInfo& info : RegisteredLookaheads()) {
    const std::string name(info.name);
    if (name == "none") continue;
    benchmark::RegisterBenchmark(("Project/" + name).c_str(), BM_Project, name)
        ->Args({16, 72, 20})
        ->Args({256, 72, 20})
        ->Args({1024, 128, 20})
        ->Args({16, 72, 500})
        ->Args({1024, 128, 500})
        ->ArgNames({"G", "B", "H"})
        ->Unit(benchmark::kMicrosecond);
    if (name != "survival" && name != "hint") continue;
    benchmark::RegisterBenchmark(("Learn/" + name).c_str(), BM_Learn, name)
        ->Args({16, 72})
        ->Args({1024, 128})
        ->ArgNames({"G", "B"})
        ->Unit(benchmark::kMicrosecond);
  }
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
