#include "tools/sim/step/one_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::sim {
namespace {

constexpr int64_t kAskEvery = 4096;

absl::Status CheckArrivals(const std::vector<StepArrival>& arrivals) {
  for (size_t i = 0; i < arrivals.size(); ++i) {
    if (arrivals[i].prefill < 1 || arrivals[i].decode < 1) {
      return absl::InvalidArgumentError(absl::StrCat("arrival ", i, " has a prompt of ", arrivals[i].prefill,
                                                     " tokens and ", arrivals[i].decode, " decodes"));
    }
    if (i > 0 && arrivals[i].at < arrivals[i - 1].at) {
      return absl::InvalidArgumentError(absl::StrCat("arrival ", i, " comes before the one before it"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OneEngineRun> RunOneEngine(const std::vector<StepArrival>& arrivals,
                                          const OneEngineOptions& options) {
  if (absl::Status status = CheckArrivals(arrivals); !status.ok()) return status;
  auto scheduler = worker::BatchScheduler::Create(options.scheduler, options.order);
  if (!scheduler.ok()) return scheduler.status();
  worker::EngineModel engine(options.engine, *std::move(scheduler));
  OneEngineRun run;
  run.lives.resize(arrivals.size());
  worker::EngineModel::Ended ended;
  size_t next = 0;
  double now = 0;
  const auto arrive = [&](double until) {
    for (; next < arrivals.size() && arrivals[next].at <= until; ++next) {
      const StepArrival& arrival = arrivals[next];
      engine.Arrive({static_cast<int64_t>(next), arrival.prefill, arrival.decode, arrival.priority});
    }
  };
  // What was there up to `until`, when nothing ends before.
  const auto sample = [&](double until) {
    if (options.sample_s <= 0) return;
    double at = 0;
    while ((at = static_cast<double>(run.tokens_left.size()) * options.sample_s) < until) {
      arrive(at);
      run.requests_left.push_back(engine.requests_count());
      run.tokens_left.push_back(engine.tokens());
    }
  };
  while (now <= options.until_s) {
    arrive(now);
    const auto seconds = engine.Start();
    if (!seconds) {
      run.stuck = engine.tokens() > 0 && next == arrivals.size();
      if (next == arrivals.size()) break;
      sample(arrivals[next].at);
      now = std::max(now, arrivals[next].at);
      continue;
    }
    sample(now + *seconds);
    now += *seconds;
    arrive(now);
    run.busy_s += *seconds;
    run.tokens += engine.load().tokens;
    engine.End(ended);
    for (const int64_t id : ended.prefilled) run.lives[id].prefilled = now;
    for (const int64_t id : ended.completed) run.lives[id].completed = now;
    run.completed += static_cast<int64_t>(ended.completed.size());
    if (++run.batches % kAskEvery == 0 && options.go_on && !options.go_on()) break;
  }
  run.end_s = now;
  if (options.sample_s > 0 && options.until_s < 1e17) sample(options.until_s);
  return run;
}

StepLatencies LatenciesOf(const std::vector<StepArrival>& arrivals, const OneEngineRun& run, double from) {
  StepLatencies latencies;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const StepLife& life = run.lives[i];
    if (life.completed < 0 || arrivals[i].at < from) continue;
    latencies.ttft.push_back(life.prefilled - arrivals[i].at);
    latencies.tpot.push_back((life.completed - life.prefilled) / static_cast<double>(arrivals[i].decode));
    latencies.e2e.push_back(life.completed - arrivals[i].at);
  }
  return latencies;
}

}  // namespace bfio::sim
