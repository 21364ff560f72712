#include "tools/sim/serve/serve_run.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "common/base/status_macros.h"
#include "common/cost/batch_fit.h"
#include "nlohmann/json.hpp"
#include "router/core/prefill/level.h"
#include "router/core/scheduler/plan_delay.h"
#include "tools/sim/serve/serve_group.h"
#include "tools/sim/serve/serve_rule.h"

namespace bfio::sim {
namespace {

// Random stream of arrivals, derived from the run's seed; the noise has its own (serve_group.cc).
constexpr uint64_t kArrivalStream = 0;
// Duration of a run, in mean lifetimes of a request in the group at its capacity. The warm-up lasts until the
// mix of request ages is stationary and the ranks hold kFilled of their steady-state tokens. Enough requests
// are counted that about thirty lie beyond a p99.
constexpr double kWarmupLives = 2;
constexpr double kFilled = 0.97;
// In a closed loop all requests arrive at once, and a rule that delays long prompts ends up with only those.
constexpr double kClosedWarmupLives = 6;
constexpr double kCountedLives = 4;
constexpr double kLeastRequests = 3000;
// A rule that needs this many times the expected duration does not keep up.
constexpr double kPatience = 3;
// Number of recent arrivals, prompts and outputs over which the means in ServeView::traffic are taken.
constexpr size_t kRecent = 256;
// Weight of the newest step in the moving average of the step time.
constexpr double kStepWeight = 1.0 / 64;
// Maximum number of consecutive steps without work while requests are in the system.
constexpr int64_t kMostEmptySteps = 1000;
// Steps between updates of a fitted cost, as in workers' reports.
constexpr int64_t kFitSteps = 64;
// Maximum objective in seconds, as in the router.
constexpr double kMostObjective = 3600;

// The mean of the last kRecent values.
class RecentMean {
 public:
  void Add(double value) {
    values_.push_back(value);
    sum_ += value;
    if (values_.size() <= kRecent) return;
    sum_ -= values_.front();
    values_.pop_front();
  }
  double mean() const { return values_.empty() ? 0 : sum_ / static_cast<double>(values_.size()); }

 private:
  std::deque<double> values_;
  double sum_ = 0;
};

// Advances `ranks` by `plan`, whose step begins at `begins_s`, assuming that no request ends.
void Forecast(const ServePlan& plan, const std::vector<ServeRequest>& requests, const BatchCost& cost,
              double begins_s, std::vector<ServeRank>& ranks) {
  for (const ServePlan::Binding& binding : plan.bindings) {
    const int64_t tokens = requests[binding.request].prompt;
    ranks[binding.rank].prompts.push_back({binding.request, tokens, 0, begins_s});
    ranks[binding.rank].prompt_tokens += tokens;
  }
  for (size_t g = 0; g < ranks.size(); ++g) {
    ServeRank& rank = ranks[g];
    std::vector<PromptLeft> prompts;
    for (const BoundPrompt& prompt : rank.prompts) prompts.push_back({prompt.left, prompt.done});
    int64_t tokens = plan.orders[g].prompt_tokens;
    if (plan.level_s > 0) {
      tokens =
          TokensWithin({cost, rank.decodes, static_cast<double>(rank.decode_context), prompts}, plan.level_s);
    }
    if (plan.orders[g].decodes) rank.decode_context += rank.decodes;
    rank.prompt_tokens -= ComputePrompts(tokens, rank.prompts, [&](const BoundPrompt& prompt) {
      if (requests[prompt.request].output <= 1) return;
      ++rank.decodes;
      rank.decode_context += prompt.done + 1;
    });
    rank.begun = std::min(rank.begun, static_cast<int64_t>(rank.prompts.size()));
  }
}

Latencies LatenciesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())))];
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / static_cast<double>(values.size()), at(0.5), at(0.99)};
}

// `values`: each value with its number of samples.
Latencies LatenciesOf(std::vector<std::pair<double, int64_t>> values) {
  std::sort(values.begin(), values.end());
  double sum = 0;
  int64_t all = 0;
  for (const auto& [value, count] : values) {
    sum += value * static_cast<double>(count);
    all += count;
  }
  if (all == 0) return {};
  const auto at = [&](double q) {
    auto left = static_cast<int64_t>(q * static_cast<double>(all));
    for (const auto& [value, count] : values) {
      left -= count;
      if (left < 0) return value;
    }
    return values.back().first;
  };
  return {sum / static_cast<double>(all), at(0.5), at(0.99)};
}

class Run {
 public:
  Run(const ServeOptions& options, const Trace& trace, std::unique_ptr<ServeRule> rule)
      : options_(options),
        trace_(trace),
        rule_(std::move(rule)),
        delay_(std::max(0, options.lag - 1)),
        known_(options.cost),
        rng_(Rng(options.seed).Fork(kArrivalStream)) {
    const LengthMoments moments = MomentsOf(trace);
    result_.capacity = CapacityOf(moments, options.cost.batch, options.workers, options.slots);
    // In a closed loop ends of requests cause arrivals; this estimate only determines the run's duration.
    result_.arrivals_per_s = (options.closed ? 1 : options.load) * result_.capacity.requests_per_s;
    const double life_s = moments.output * result_.capacity.step_s;
    result_.warmup_s =
        std::max((options.closed ? kClosedWarmupLives : kWarmupLives) * life_s,
                 static_cast<double>(StepsUntilFilled(trace, kFilled)) * result_.capacity.step_s);
    result_.counted_s = std::max(kCountedLives * life_s, kLeastRequests / result_.arrivals_per_s);
    ServeGroup::Options group{options.workers, options.slots, options.cost, options.jitter, options.seed, 1};
    for (const TraceRequest& request : trace.requests) {
      group.longest_output = std::max(group.longest_output, request.output_tokens);
    }
    // A run takes at least as long as its longest request.
    end_s_ = kPatience * (result_.warmup_s + result_.counted_s +
                          static_cast<double>(group.longest_output) * result_.capacity.step_s);
    group_ = std::make_unique<ServeGroup>(group, &requests_);
    // As in the simulator's other runs, seed 1 begins at the start of the trace.
    row_ = options.seed == 1 ? 0 : Rng(options.seed).Below(trace.requests.size());
    last_plan_ = EmptyPlan();
    plans_.assign(static_cast<size_t>(delay_), last_plan_);
    DrawNext();
  }

  absl::StatusOr<ServeResult> Go() {
    while (now_s_ < result_.warmup_s + result_.counted_s || counted_left_ > 0) {
      if (now_s_ > end_s_) {
        return absl::ResourceExhaustedError(
            absl::StrCat(options_.rule, " is overloaded at --load=", options_.load, ": after ", now_s_, " s ",
                         counted_left_, " of the counted requests have not ended"));
      }
      Arrive();
      const ServePlan plan = NextPlan();
      for (const ServePlan::Binding& binding : plan.bindings)
        group_->Bind(binding.request, binding.rank, now_s_);
      const ServeStep& step = group_->Step(OrdersOf(plan), now_s_);
      PlanAhead(step.seconds);
      empty_steps_ = step.seconds > 0 ? 0 : empty_steps_ + 1;
      if (empty_steps_ > kMostEmptySteps) {
        return absl::InternalError(
            absl::StrCat(options_.rule, " made no runnable plan in ", kMostEmptySteps, " steps"));
      }
      Learn(step);
      now_s_ += step.seconds;
      ++step_number_;
      Count(step);
    }
    Finish();
    return std::move(result_);
  }

 private:
  ServePlan EmptyPlan() const {
    ServePlan plan;
    plan.orders.resize(static_cast<size_t>(options_.workers));
    return plan;
  }

  void DrawNext() { next_arrival_s_ += rng_.Exponential() / result_.arrivals_per_s; }

  // Number of requests in the system of a closed loop.
  int64_t Population() const {
    const double slots = static_cast<double>(options_.slots) * options_.workers;
    return std::max<int64_t>(1, std::llround(options_.load * slots));
  }

  bool Idle() const {
    return group_->active() == 0 && pool_.empty() &&
           std::all_of(plans_.begin(), plans_.end(),
                       [](const ServePlan& plan) { return plan.bindings.empty(); });
  }

  void Arrive() {
    if (options_.closed) {
      for (; in_system_ < Population(); ++in_system_) ArriveAt(now_s_);
      return;
    }
    if (Idle()) now_s_ = std::max(now_s_, next_arrival_s_);
    for (; next_arrival_s_ <= now_s_; DrawNext()) ArriveAt(next_arrival_s_);
  }

  void ArriveAt(double arrival_s) {
    const TraceRequest& row = trace_.requests[row_++ % trace_.requests.size()];
    pool_.push_back(static_cast<ServeRequestIndex>(requests_.size()));
    requests_.push_back({arrival_s, row.prompt_tokens, row.output_tokens});
    counted_left_ += IsCounted(requests_.back()) ? 1 : 0;
    arrivals_.push_back(arrival_s);
    if (arrivals_.size() > kRecent) arrivals_.pop_front();
    const auto prompt = static_cast<double>(row.prompt_tokens);
    prompts_.Add(prompt);
    prefills_s_.Add(WholePromptSeconds(known_.batch, {row.prompt_tokens, 0}, 0));
  }

  bool IsCounted(const ServeRequest& request) const {
    return request.arrival_s >= result_.warmup_s && request.arrival_s < result_.warmup_s + result_.counted_s;
  }
  bool Counting() const {
    return now_s_ >= result_.warmup_s && now_s_ < result_.warmup_s + result_.counted_s;
  }

  core::PrefillTraffic Traffic() const {
    core::PrefillTraffic traffic;
    if (arrivals_.size() > 1 && now_s_ > arrivals_.front()) {
      traffic.arrivals_per_s = static_cast<double>(arrivals_.size() - 1) / (now_s_ - arrivals_.front());
    }
    traffic.mean_prompt_tokens = prompts_.mean();
    traffic.mean_prefill_s = prefills_s_.mean();
    traffic.mean_output_tokens = outputs_.mean();
    traffic.step_s = mean_step_s_;
    traffic.lag_steps = delay_;
    return traffic;
  }

  // Returns the plan for this step.
  ServePlan NextPlan() {
    if (delay_ == 0) return PlanFrom(group_->ranks(), now_s_);
    forecast_ = group_->ranks();
    double begins_s = now_s_;
    for (const ServePlan& plan : plans_) {
      Forecast(plan, requests_, known_.batch, begins_s, forecast_);
      begins_s += mean_step_s_;
    }
    ServePlan plan = std::move(plans_.front());
    plans_.pop_front();
    return plan;
  }

  // While this step runs, makes the plan for the step `delay_` steps later, as late as the router makes it.
  // If the step ends before that, there is no new plan, and ranks continue with the orders of the last one.
  void PlanAhead(double step_s) {
    if (delay_ == 0) return;
    double delay_s = 0;
    // An idle group gets its plan immediately.
    if (step_s > 0) delay_s = plan_delay_.OnStep(last_step_s_, std::exchange(late_, false));
    late_ = delay_s > step_s;
    last_step_s_ = step_s;
    if (late_) {
      plans_.push_back(last_plan_);
      return;
    }
    const double begin_s = now_s_;
    now_s_ += delay_s;
    // In a closed loop requests arrive when others end, which is at the end of a step.
    for (; !options_.closed && next_arrival_s_ <= now_s_; DrawNext()) ArriveAt(next_arrival_s_);
    plans_.push_back(PlanFrom(forecast_, begin_s + delay_ * mean_step_s_));
    now_s_ = begin_s;
    last_plan_ = plans_.back();
    last_plan_.bindings.clear();
  }

  ServePlan PlanFrom(const std::vector<ServeRank>& ranks, double begins_s) {
    const ServeView view{ranks,
                         requests_,
                         known_,
                         options_.slots,
                         step_number_ + delay_,
                         now_s_,
                         begins_s,
                         Traffic(),
                         options_.ttft_objective_s > 0 ? options_.ttft_objective_s : core::kNoObjective};
    ServePlan plan = EmptyPlan();
    rule_->Plan(view, pool_, plan);
    return plan;
  }

  // With a level, computes each rank's prompt tokens from its current work.
  std::vector<RankOrder> OrdersOf(const ServePlan& plan) const {
    std::vector<RankOrder> orders = plan.orders;
    if (plan.level_s <= 0) return orders;
    for (size_t g = 0; g < orders.size(); ++g) {
      const ServeRank& rank = group_->ranks()[g];
      std::vector<PromptLeft> prompts;
      for (const BoundPrompt& prompt : rank.prompts) prompts.push_back({prompt.left, prompt.done});
      orders[g].prompt_tokens = TokensWithin(
          {known_.batch, rank.decodes, static_cast<double>(rank.decode_context), prompts}, plan.level_s);
    }
    return orders;
  }

  void Learn(const ServeStep& step) {
    if (options_.known_cost == KnownCost::kTrue) return;
    for (size_t g = 0; g < step.loads.size(); ++g) {
      BatchLoad load = step.loads[g];
      if (options_.known_cost == KnownCost::kFittedWithoutK1) load.prefill_pairs = 0;
      fit_.Add(load, step.rank_s[g]);
    }
    if (step_number_ % kFitSteps == 0) known_.batch = fit_.cost().value_or(known_.batch);
  }

  void Count(const ServeStep& step) {
    mean_step_s_ =
        mean_step_s_ == 0 ? step.seconds : mean_step_s_ + kStepWeight * (step.seconds - mean_step_s_);
    for (const ServeRequestIndex index : step.ended) {
      --in_system_;
      outputs_.Add(static_cast<double>(requests_[index].output));
      counted_left_ -= IsCounted(requests_[index]) ? 1 : 0;
    }
    if (!Counting() || step.seconds <= 0) return;
    ++result_.steps;
    tokens_ += step.tokens;
    gaps_.insert(gaps_.end(), step.gaps.begin(), step.gaps.end());
    const auto ranks = static_cast<double>(options_.workers);
    time_s_ += step.seconds;
    idle_s_ += step.seconds - std::accumulate(step.rank_s.begin(), step.rank_s.end(), 0.0) / ranks;
    idle_decode_s_ += *std::max_element(step.decode_s.begin(), step.decode_s.end()) -
                      std::accumulate(step.decode_s.begin(), step.decode_s.end(), 0.0) / ranks;
  }

  void Finish() {
    std::vector<double> ttft, tpot, e2e;
    for (const ServeRequest& request : requests_) {
      if (!IsCounted(request)) continue;
      ttft.push_back(request.first_token_s - request.arrival_s);
      e2e.push_back(request.end_s - request.arrival_s);
      if (request.output > 1) {
        tpot.push_back((request.end_s - request.first_token_s) / static_cast<double>(request.output - 1));
      }
    }
    result_.requests = static_cast<int64_t>(e2e.size());
    if (options_.ttft_objective_s > 0) {
      const auto met = std::count_if(ttft.begin(), ttft.end(),
                                     [&](double seconds) { return seconds <= options_.ttft_objective_s; });
      result_.ttft_met = static_cast<double>(met) / static_cast<double>(std::max<size_t>(1, ttft.size()));
    }
    result_.ttft_s = LatenciesOf(std::move(ttft));
    result_.tpot_s = LatenciesOf(std::move(tpot));
    result_.e2e_s = LatenciesOf(std::move(e2e));
    result_.itl_s = LatenciesOf(std::move(gaps_));
    result_.step_s_mean = time_s_ / static_cast<double>(std::max<int64_t>(1, result_.steps));
    result_.idle_fraction = idle_s_ / time_s_;
    result_.idle_decode_fraction = idle_decode_s_ / time_s_;
    result_.idle_prefill_fraction = result_.idle_fraction - result_.idle_decode_fraction;
    result_.throughput_tokens_per_s = static_cast<double>(tokens_) / time_s_;
  }

  const ServeOptions& options_;
  const Trace& trace_;
  const std::unique_ptr<ServeRule> rule_;
  // Number of steps that begin between making a plan and applying it.
  const int32_t delay_;
  GroupCost known_;
  BatchFit fit_;
  Rng rng_;
  ServeResult result_;
  std::vector<ServeRequest> requests_;
  std::unique_ptr<ServeGroup> group_;
  std::deque<ServeRequestIndex> pool_;
  // Plans for the coming steps.
  std::deque<ServePlan> plans_;
  // The ranks after plans_ have been carried out; scratch.
  std::vector<ServeRank> forecast_;
  core::PlanDelay plan_delay_;
  // The previous step ended before its plan was made.
  bool late_ = false;
  double last_step_s_ = 0;
  // The orders that ranks follow when there is no new plan.
  ServePlan last_plan_;
  size_t row_ = 0;
  double next_arrival_s_ = 0, now_s_ = 0, end_s_ = 0;
  int64_t step_number_ = 0, empty_steps_ = 0, counted_left_ = 0;
  // Maintained in a closed loop only.
  int64_t in_system_ = 0;
  std::deque<double> arrivals_;
  RecentMean prompts_, prefills_s_, outputs_;
  double mean_step_s_ = 0;
  // Gaps between tokens in the counted steps.
  std::vector<std::pair<double, int64_t>> gaps_;
  int64_t tokens_ = 0;
  double time_s_ = 0, idle_s_ = 0, idle_decode_s_ = 0;
};

absl::Status Check(const ServeOptions& options, const Trace& trace) {
  const auto bad = [](auto... what) { return absl::InvalidArgumentError(absl::StrCat(what...)); };
  if (trace.requests.empty()) return bad(trace.source, ": no requests");
  if (options.workers < 1 || options.workers > 1024)
    return bad("--workers=", options.workers, ": must be within 1..1024");
  if (options.slots < 1 || options.slots > 65536)
    return bad("--slots=", options.slots, ": must be within 1..65536");
  if (options.budget < 1) return bad("--budget=", options.budget, ": must be at least 1");
  if (!(options.load > 0 && options.load <= 10))
    return bad("--load=", options.load, ": must be above 0 and at most 10");
  if (options.lag < 0 || options.lag > 64) return bad("--lag=", options.lag, ": must be within 0..64");
  if (!(options.ttft_objective_s >= 0 && options.ttft_objective_s <= kMostObjective)) {
    return bad("--ttft_objective=", options.ttft_objective_s, ": must be within 0..", kMostObjective,
               " seconds");
  }
  if (!(options.jitter >= 0 && options.jitter <= 1))
    return bad("--jitter=", options.jitter, ": must be within 0..1");
  const BatchCost& cost = options.cost.batch;
  const bool sound = cost.c_s > 0 && cost.a_s_per_token > 0 && cost.b0_tokens >= 0 &&
                     cost.k1_s_per_pair >= 0 && cost.k2_s_per_token >= 0 &&
                     std::isfinite(cost.c_s + cost.a_s_per_token) &&
                     std::isfinite(cost.k1_s_per_pair + cost.k2_s_per_token);
  if (!sound) return bad("--cost: C and A must be above 0, and B0, K1 and K2 at least 0");
  if (MomentsOf(trace).output <= 1) return bad(trace.source, ": no request generates a second token");
  return absl::OkStatus();
}

nlohmann::ordered_json LatenciesJson(const Latencies& latencies) {
  return {{"mean", latencies.mean}, {"p50", latencies.p50}, {"p99", latencies.p99}};
}

}  // namespace

absl::StatusOr<ServeResult> RunServe(const ServeOptions& options, const Trace& trace) {
  BFIO_RETURN_IF_ERROR(Check(options, trace));
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<ServeRule> rule, MakeServeRule(options.rule, options.budget));
  return Run(options, trace, std::move(rule)).Go();
}

nlohmann::ordered_json ServeJson(const ServeOptions& options, const std::string& workload,
                                 const ServeResult& result) {
  nlohmann::ordered_json json;
  json["rule"] = options.rule;
  json["workload"] = workload;
  json["workers"] = options.workers;
  json["slots"] = options.slots;
  json["budget"] = options.budget;
  json["load"] = options.load;
  json["closed"] = options.closed;
  json["lag"] = options.lag;
  json["seed"] = options.seed;
  if (options.cost.terms.padded) json["padded"] = options.cost.terms.captured_rows;
  json["prompt_price_s"] = options.cost.terms.prompt_s;
  json["eager_price_s"] = options.cost.terms.eager_s;
  json["capacity_requests_per_s"] = result.capacity.requests_per_s;
  json["arrivals_per_s"] = result.arrivals_per_s;
  json["warmup_s"] = result.warmup_s;
  json["counted_s"] = result.counted_s;
  json["requests"] = result.requests;
  json["steps"] = result.steps;
  json["step_s_mean"] = result.step_s_mean;
  if (result.ttft_met) {
    json["ttft_objective_s"] = options.ttft_objective_s;
    json["ttft_met"] = *result.ttft_met;
  }
  json["ttft_s"] = LatenciesJson(result.ttft_s);
  json["tpot_s"] = LatenciesJson(result.tpot_s);
  json["itl_s"] = LatenciesJson(result.itl_s);
  json["e2e_s"] = LatenciesJson(result.e2e_s);
  json["idle_fraction"] = result.idle_fraction;
  json["idle_decode_fraction"] = result.idle_decode_fraction;
  json["idle_prefill_fraction"] = result.idle_prefill_fraction;
  json["throughput_tokens_per_s"] = result.throughput_tokens_per_s;
  return json;
}

}  // namespace bfio::sim
