#include "tools/sim/step/one_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace bfio::sim {
namespace {

constexpr int64_t kCheckEvery = 4096;

worker::BudgetTunerOptions TunerOptions(const OneEngineOptions& options) {
  worker::BudgetTunerOptions tuner = *options.adapt;
  tuner.max_budget = options.engine.token_budget;
  tuner.slots = options.engine.slots;
  tuner.prompt_gives_token = options.engine.prompt_gives_token;
  return tuner;
}

class Driver {
 public:
  Driver(const std::vector<StepArrival>& arrivals, const OneEngineOptions& options,
         const worker::BatchScheduler& scheduler)
      : arrivals_(arrivals), options_(options), engine_(options.engine, scheduler) {
    if (options.adapt) tuner_.emplace(TunerOptions(options), scheduler);
    run_.lives.resize(arrivals.size());
  }

  OneEngineRun Run() {
    while (now_ <= options_.until_s) {
      Arrive(now_);
      const auto seconds = engine_.Start();
      run_.stuck = !seconds && engine_.tokens() > 0;
      if (seconds) {
        Batch(*seconds);
        if (++run_.batches % kCheckEvery == 0 && options_.go_on && !options_.go_on()) break;
        continue;
      }
      if (next_ == arrivals_.size() || arrivals_[next_].at > options_.until_s) break;
      Sample(arrivals_[next_].at);
      now_ = std::max(now_, arrivals_[next_].at);
    }
    run_.end_s = now_;
    if (run_.busy_s > 0) run_.mean_budget /= run_.busy_s;
    if (options_.until_s < 1e17) Sample(options_.until_s);
    return std::move(run_);
  }

 private:
  void Arrive(double until) {
    for (; next_ < arrivals_.size() && arrivals_[next_].at <= until; ++next_) {
      const StepArrival& arrival = arrivals_[next_];
      const auto id = static_cast<int64_t>(next_);
      engine_.Arrive({id, arrival.prefill, arrival.decode, arrival.priority});
      // The tuner is not given the output length, which is unknown on arrival.
      if (tuner_) tuner_->Arrive(id, arrival.at, arrival.prefill, worker::BatchCapacity::kUnbounded);
    }
  }

  // Records the backlog at the sample times before `until`, given that no request ends before.
  void Sample(double until) {
    if (options_.sample_s <= 0) return;
    double at = 0;
    while ((at = static_cast<double>(run_.tokens_left.size()) * options_.sample_s) < until) {
      Arrive(at);
      run_.requests_left.push_back(engine_.requests_count());
      run_.tokens_left.push_back(engine_.tokens());
    }
  }

  void Batch(double seconds) {
    Sample(now_ + seconds);
    now_ += seconds;
    Arrive(now_);
    run_.busy_s += seconds;
    run_.tokens += engine_.load().tokens;
    run_.mean_budget += seconds * static_cast<double>(engine_.token_budget());
    const BatchLoad load = engine_.load();
    engine_.End(ended_);
    for (const int64_t id : ended_.prefilled) run_.lives[id].prefilled = now_;
    for (const int64_t id : ended_.completed) run_.lives[id].completed = now_;
    run_.completed += static_cast<int64_t>(ended_.completed.size());
    if (!tuner_) return;
    tuner_->Batch(load, seconds);
    for (const int64_t id : ended_.completed) tuner_->End(id, arrivals_[id].decode);
    engine_.set_token_budget(tuner_->UpdateBudget(engine_.prompt_tokens()));
  }

  const std::vector<StepArrival>& arrivals_;
  const OneEngineOptions& options_;
  worker::EngineModel engine_;
  std::optional<worker::BudgetTuner> tuner_;
  worker::EngineModel::Ended ended_;
  OneEngineRun run_;
  size_t next_ = 0;
  double now_ = 0;
};

}  // namespace

absl::Status CheckStepArrivals(const std::vector<StepArrival>& arrivals) {
  for (size_t i = 0; i < arrivals.size(); ++i) {
    if (arrivals[i].prefill < 1 || arrivals[i].decode < 1) {
      return absl::InvalidArgumentError(absl::StrCat("arrival ", i, " has a prompt of ", arrivals[i].prefill,
                                                     " tokens and ", arrivals[i].decode, " decodes"));
    }
    if (i > 0 && arrivals[i].at < arrivals[i - 1].at) {
      return absl::InvalidArgumentError(
          absl::StrCat("arrival ", i, " is earlier than the arrival before it"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OneEngineRun> RunOneEngine(const std::vector<StepArrival>& arrivals,
                                          const OneEngineOptions& options) {
  BFIO_RETURN_IF_ERROR(CheckStepArrivals(arrivals));
  BFIO_ASSIGN_OR_RETURN(auto scheduler, worker::BatchScheduler::Create(options.scheduler, options.order));
  return Driver(arrivals, options, scheduler).Run();
}

StepLatencies LatenciesOf(const std::vector<StepArrival>& arrivals, absl::Span<const StepLife> lives,
                          double from, bool prompt_gives_token) {
  StepLatencies latencies;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const StepLife& life = lives[i];
    if (life.completed < 0 || arrivals[i].at < from) continue;
    latencies.ttft.push_back(life.prefilled - arrivals[i].at);
    const int64_t after = worker::TokensAfterPrompt(arrivals[i].decode, prompt_gives_token);
    if (after > 0) latencies.tpot.push_back((life.completed - life.prefilled) / static_cast<double>(after));
    latencies.e2e.push_back(life.completed - arrivals[i].at);
  }
  return latencies;
}

}  // namespace bfio::sim
