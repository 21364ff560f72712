// The duration of one decision of the solver, and the time saved by evaluating differences.
//
// Workload: a group in overload: every worker is full except for the slots that completions of one step free
// (one resident in 210), loads around B requests of about 1,100 tokens, a pool of long-tailed requests, and
// oracle lookahead (a curve per remaining length, so H + 1 curves) or one survival curve for all ("smooth").
// Times are processor time of one thread, so that a busy machine does not distort them.
//   G =    16, B =  72, |waiting| =   128
//   G =   256, B =  72, |waiting| = 1,024
//   G = 1,024, B = 128, |waiting| = 4,096
// Solve/...   p50_us and p99_us over 64 instances, repeated; U is the mean number of free slots.
// Plain/...   one evaluation of every exchange of an admitted with a waiting item by a simple implementation,
//             which recomputes J for each. If that is more than some thousand exchanges, it is the time of a
//             sample scaled up. ratio = that time over the time of a whole Solve.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "router/core/solver/solver.h"

namespace bfio::core {
namespace {

constexpr int64_t kKv = int64_t{1} << 40;
constexpr int kVariants = 64;
constexpr double kCompletionRate = 1.0 / 210;
constexpr int64_t kMostPlainExchanges = 2'000;

struct Shape {
  int workers, batch, waiting, horizon;
  bool oracle;
};

int Completions(int residents, Rng& rng) {
  int completions = 0;
  for (int i = 0; i < residents; ++i) completions += rng.Uniform() < kCompletionRate ? 1 : 0;
  return completions;
}

void AddWorkers(const Shape& shape, Instance& instance, Rng& rng) {
  for (int g = 0; g < shape.workers; ++g) {
    const int freed = Completions(shape.batch, rng);
    WorkerView worker{static_cast<int64_t>(shape.batch * 1'100 + rng.Normal() * 500 - 1'400 * freed), 0,
                      freed, kKv};
    worker.active = shape.batch - freed;
    instance.workers.push_back(worker);
    double load = static_cast<double>(worker.load_tokens);
    int active = worker.active;
    for (int h = 0; shape.horizon > 0 && h <= shape.horizon; ++h) {
      instance.ahead.push_back(load);
      const int gone = Completions(active, rng);
      active -= gone;
      load += active - gone * static_cast<double>(static_cast<int64_t>(1'400 * rng.Gamma(1)));
    }
  }
}

Instance MakeInstance(const Shape& shape, Rng& rng) {
  Instance instance;
  instance.horizon = shape.horizon;
  AddWorkers(shape, instance, rng);
  const int curves = shape.horizon == 0 ? 0 : shape.oracle ? shape.horizon + 1 : 1;
  for (int c = 0; c < curves; ++c) {
    double alive = 1;
    for (int h = 0; h <= shape.horizon; ++h) {
      instance.curves.push_back(shape.oracle ? (h <= c ? 1 : 0) : alive);
      alive *= 1 - kCompletionRate;
    }
  }
  double load = 0;
  for (int i = 0; i < shape.waiting; ++i) {
    SolverItem item;
    item.load = 1 + static_cast<int64_t>(rng.Gamma(0.8) * 1'200);
    item.kv_reserve = item.load + 300;
    item.weight = 200.0 * (shape.waiting - i) / 5;
    const auto left = static_cast<int>(210 * rng.Gamma(1));
    item.curve = curves > 1 ? std::min(left, curves - 1) : 0;
    instance.items.push_back(item);
    load += static_cast<double>(item.load) * static_cast<double>(instance.TotalSlots()) / shape.waiting;
  }
  for (const WorkerView& worker : instance.workers) load += static_cast<double>(worker.load_tokens);
  instance.target_load = load / shape.workers;
  return instance;
}

std::vector<Instance> MakeInstances(const Shape& shape) {
  Rng rng(5);
  std::vector<Instance> instances;
  while (instances.size() < kVariants) {
    Instance instance = MakeInstance(shape, rng);
    if (instance.Target() > 0) instances.push_back(std::move(instance));
  }
  return instances;
}

// Processor time of this thread, which other processes do not affect.
double NowMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}
double MicrosecondsSince(double start) {
  return NowMicroseconds() - start;
}

double Quantile(std::vector<double>& values, double q) {
  const auto at = values.begin() + static_cast<int64_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

SolverSettings SettingsOf(ObjectiveKind kind) {
  SolverSettings settings;
  settings.objective = kind;
  return settings;
}

void BM_Solve(benchmark::State& state, Shape shape, ObjectiveKind kind) {
  const std::vector<Instance> instances = MakeInstances(shape);
  Solver solver(SettingsOf(kind));
  double objective = 0;
  for (const Instance& instance : instances) {
    objective += Evaluate(instance, SettingsOf(kind), solver.Solve(instance)) / kVariants;
  }
  std::vector<double> us;
  double slots = 0, evaluations = 0, converged = 0;
  for (auto _ : state) {
    const Instance& instance = instances[us.size() % instances.size()];
    const auto start = NowMicroseconds();
    benchmark::DoNotOptimize(solver.Solve(instance).worker_of.data());
    us.push_back(MicrosecondsSince(start));
    state.SetIterationTime(us.back() * 1e-6);
    slots += static_cast<double>(instance.Target());
    evaluations += static_cast<double>(solver.statistics().evaluations);
    converged += solver.statistics().converged ? 1 : 0;
  }
  const double runs = static_cast<double>(us.size());
  state.counters["U"] = slots / runs;
  state.counters["evaluations"] = evaluations / runs;
  state.counters["converged"] = converged / runs;
  state.counters["objective"] = objective;
  state.counters["p50_us"] = Quantile(us, 0.5);
  state.counters["p99_us"] = Quantile(us, 0.99);
}

// One round of swaps with a full evaluation of each; microseconds.
double PlainRound(const Instance& instance, const SolverSettings& settings, Solution solution) {
  std::vector<int32_t> in, out;
  for (size_t i = 0; i < solution.worker_of.size(); ++i) {
    (solution.worker_of[i] == kUnassigned ? out : in).push_back(static_cast<int32_t>(i));
  }
  const auto exchanges = static_cast<int64_t>(in.size() * out.size());
  const int64_t sample =
      std::min(exchanges, kMostPlainExchanges * 16 / static_cast<int64_t>(instance.workers.size()) + 1);
  const auto start = NowMicroseconds();
  double best = 0;
  for (int64_t k = 0; k < sample; ++k) {
    const int64_t at = k * exchanges / sample;
    int32_t& a = solution.worker_of[in[at / static_cast<int64_t>(out.size())]];
    int32_t& b = solution.worker_of[out[at % static_cast<int64_t>(out.size())]];
    std::swap(a, b);
    best = std::min(best, Evaluate(instance, settings, solution));
    std::swap(a, b);
  }
  benchmark::DoNotOptimize(best);
  return MicrosecondsSince(start) * static_cast<double>(exchanges) / static_cast<double>(sample);
}

void BM_Plain(benchmark::State& state, Shape shape, ObjectiveKind kind) {
  std::vector<Instance> instances = MakeInstances(shape);
  instances.resize(4);
  Solver solver(SettingsOf(kind));
  double plain = 0, ours = 0;
  size_t next = 0;
  for (auto _ : state) {
    const Instance& instance = instances[next++ % instances.size()];
    const auto start = NowMicroseconds();
    const Solution solution = solver.Solve(instance);
    ours += MicrosecondsSince(start);
    plain += PlainRound(instance, SettingsOf(kind), solution);
  }
  state.counters["round_us"] = plain / static_cast<double>(next);
  state.counters["ratio"] = plain / ours;
}

void RegisterAll() {
  const std::pair<const char*, ObjectiveKind> kinds[] = {{"paper", ObjectiveKind::kPaper},
                                                         {"square", ObjectiveKind::kSquare}};
  const Shape sizes[] = {{16, 72, 128, 0, true}, {256, 72, 1024, 0, true}, {1024, 128, 4096, 0, true}};
  for (const auto& [name, kind] : kinds) {
    for (Shape shape : sizes) {
      for (const char* lookahead : {"", "/oracle", "/smooth"}) {
        shape.horizon = *lookahead == 0 ? 0 : 20;
        shape.oracle = std::string(lookahead) != "/smooth";
        const std::string suffix = std::string("/") + name + "/G:" + std::to_string(shape.workers) +
                                   "/waiting:" + std::to_string(shape.waiting) +
                                   "/H:" + std::to_string(shape.horizon) + lookahead;
        const auto kind_of = kind;
        benchmark::RegisterBenchmark(("Solve" + suffix).c_str(), BM_Solve, shape, kind_of)
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond);
        if (kind == ObjectiveKind::kPaper) {
          benchmark::RegisterBenchmark(("Plain" + suffix).c_str(), BM_Plain, shape, kind_of)
              ->Iterations(4)
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
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
