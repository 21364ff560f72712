#include "tools/sim/serve/serve_run.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <memory>
#include <numeric>
#include <ranges>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "common/base/status_macros.h"
#include "common/cost/group_fit.h"
#include "router/core/lookahead/lookahead.h"
#include "tools/sim/rank/cluster_dispatcher.h"
#include "tools/sim/rank/shared.h"
#include "tools/sim/serve/hand_off_rules.h"
#include "tools/sim/serve/serve_rule.h"

namespace bfio::sim {
namespace {

// Random stream of arrivals, derived from the run's seed; the noise has its own (serve_group.cc).
constexpr uint64_t kArrivalStream = 0;
// Duration of a run, in mean lifetimes of a request in the group at its capacity. The warm-up lasts until the
// mix of request ages is stationary and the ranks hold kFilled of their steady-state tokens.
constexpr double kWarmupLives = 2;
constexpr double kFilled = 0.97;
// In a closed loop all requests arrive at once, and a rule that delays long prompts ends up with only those.
constexpr double kClosedWarmupLives = 6;
constexpr double kCountedLives = 4;
// A rule that needs this many times the expected duration does not keep up.
constexpr double kPatience = 3;
// Steps between updates of a fitted cost, as in workers' reports.
constexpr int64_t kFitSteps = 64;
// Token budget of ranks that have a level instead.
constexpr int64_t kUnlimitedTokens = int64_t{1} << 40;
// A rule that leaves more requests waiting does not keep up: twice the router's default for its pool. In a
// closed loop at most all requests wait.
constexpr int64_t kLeastPool = 8192;

// An engine's rule, which decides when a step begins.
class RuleDispatcher final : public EngineDispatcher {
 public:
  RuleDispatcher(std::unique_ptr<ServeRule> rule, ServeGroup* group,
                 const std::vector<ServeRequest>* requests)
      : rule_(std::move(rule)), group_(group), requests_(requests) {}

  void Arrived(ServeRequestIndex request) override { pool_.push_back(request); }
  bool Order(int32_t stepper, std::vector<RankOrder>& orders) override {
    if (pool_.empty() && !group_->HasWork(stepper)) return false;
    ServePlan plan;
    plan.orders.resize(group_->ranks().size());
    rule_->Plan({group_->ranks(), *requests_, group_->slots(), step_++}, pool_, plan);
    for (const ServePlan::Binding& binding : plan.bindings) group_->Bind(binding.request, binding.rank);
    orders = std::move(plan.orders);
    return true;
  }
  int64_t waiting() const override { return std::ssize(pool_); }

 private:
  const std::unique_ptr<ServeRule> rule_;
  ServeGroup* const group_;
  const std::vector<ServeRequest>* const requests_;
  std::deque<ServeRequestIndex> pool_;
  int64_t step_ = 0;
};

class Run final : public Traffic {
 public:
  Run(const ServeOptions& options, const Trace& trace)
      : options_(options),
        trace_(trace),
        longest_output_(LongestOutput(trace)),
        known_(options.cost),
        fit_({.captured_rows = options.cost.terms.captured_rows}),
        rng_(Rng(options.seed).Fork(kArrivalStream)),
        group_({.ranks = options.workers,
                .prefill_ranks = options.prefill_ranks,
                .transfer_s = options.transfer_s,
                .transfer_s_per_token = options.transfer_s_per_token,
                .slots = options.slots,
                .cost = options.cost,
                .jitter = options.jitter,
                .seed = options.seed,
                .longest_output = longest_output_,
                .kv_tokens = options.kv_tokens,
                .caches = false,
                .drift = Drift::Steady(options.tokens_per_step),
                .decode_rows = static_cast<int64_t>(std::ceil(options.tokens_per_step))},
               &requests_) {
    if (options.fitted_cost) known_.terms = {.captured_rows = options.cost.terms.captured_rows};
    const LengthMoments moments =
        options.prefill_ranks > 0 ? WithoutPrompts(MomentsOf(trace)) : MomentsOf(trace);
    result_.capacity = CapacityOf(moments, options.cost.batch, options.workers, options.slots);
    result_.arrivals_per_s = options.load * result_.capacity.requests_per_s;
    const double life_s = moments.output * result_.capacity.step_s;
    result_.warmup_s =
        std::max((options.closed ? kClosedWarmupLives : kWarmupLives) * life_s,
                 static_cast<double>(StepsUntilFilled(trace, kFilled)) * result_.capacity.step_s);
    result_.counted_s = std::max(kCountedLives * life_s,
                                 static_cast<double>(options.least_requests) / result_.arrivals_per_s);
    // A run takes at least as long as its longest request.
    end_s_ = kPatience * (result_.warmup_s + result_.counted_s +
                          static_cast<double>(longest_output_) * result_.capacity.step_s);
    // As in the simulator's other runs, seed 1 begins at the start of the trace.
    row_ = options.seed == 1 ? 0 : Rng(options.seed).Below(trace.requests.size());
    if (!options.closed) next_arrival_s_ = rng_.Exponential() / result_.arrivals_per_s;
  }

  absl::StatusOr<ServeResult> Go() {
    BFIO_RETURN_IF_ERROR(MakeDispatcher());
    BFIO_RETURN_IF_ERROR(RunEngines(group_, *this, *dispatcher_));
    if (overloaded_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(options_.rule, " is overloaded at --load=", options_.load, ": after ", end_s_, " s ",
                       counted_left_, " of the counted requests have not ended"));
    }
    Finish();
    return std::move(result_);
  }

  double NextArrival() const override {
    return options_.closed && in_system_ >= Population() ? kNever : next_arrival_s_;
  }

  std::optional<ServeRequestIndex> Arrive(double now_s) override {
    const TraceRequest& row = trace_.requests[row_++ % trace_.requests.size()];
    ServeRequest request{options_.closed ? now_s : next_arrival_s_, row.prompt_tokens, row.output_tokens};
    request.max_new_tokens = longest_output_;
    request.id = requests_.size() + 1;
    ++in_system_;
    counted_left_ += IsCounted(request) ? 1 : 0;
    if (!options_.closed) next_arrival_s_ += rng_.Exponential() / result_.arrivals_per_s;
    requests_.push_back(std::move(request));
    return std::ssize(requests_) - 1;
  }

  bool Done(double now_s) const override {
    return overloaded_ || (now_s >= result_.warmup_s + result_.counted_s && counted_left_ == 0);
  }

  void Stepped(const ServeStep& step, double now_s) override {
    if (step.prefills) return;
    if (options_.watch) options_.watch(group_, step, now_s, requests_);
    Learn(step);
    for (const auto& [index, rank] : step.began) {
      const ServeRequest& request = requests_[index];
      if (request.computed == 0) continue;
      ++result_.handed_over;
      result_.reused += used_.insert(index).second ? 0 : 1;
      const double transfer_s =
          options_.transfer_s + options_.transfer_s_per_token * static_cast<double>(request.computed);
      const double waited_s = now_s - step.seconds - request.handed_over_s - transfer_s;
      if (Counts(now_s)) hand_offs_.emplace_back(std::max(0.0, waited_s), 1);
    }
    for (const auto& [index, rank] : step.ended) {
      --in_system_;
      counted_left_ -= IsCounted(requests_[index]) ? 1 : 0;
    }
    overloaded_ = now_s > end_s_ && !Done(now_s);
    if (!Counts(now_s) || step.seconds <= 0) return;
    ++result_.steps;
    tokens_ += step.tokens;
    gaps_.insert(gaps_.end(), step.gaps.begin(), step.gaps.end());
    const auto ranks = static_cast<double>(options_.workers);
    time_s_ += step.seconds;
    idle_s_ += step.seconds - std::accumulate(step.rank_s.begin(), step.rank_s.end(), 0.0) / ranks;
    idle_decode_s_ += *std::max_element(step.decode_s.begin(), step.decode_s.end()) -
                      std::accumulate(step.decode_s.begin(), step.decode_s.end(), 0.0) / ranks;
  }

 private:
  absl::Status MakeHandOffs() {
    const HandOffRule* const rule = FindHandOffRule(options_.rule);
    if (rule == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("unknown rule '", options_.rule, "'"));
    if (rule->policy.empty()) {
      dispatcher_ = MakeHandOffDispatcher(*rule, options_.budget, options_.prefill_budget, options_.seed,
                                          &group_, &requests_);
      return absl::OkStatus();
    }
    ClusterDispatcher::Options router = RouterOptions();
    router.policy.name = rule->policy;
    // Less, so that the sum over all ranks does not overflow.
    router.worker.kv_tokens =
        options_.kv_tokens > 0 ? options_.kv_tokens : kUnlimitedKv / (2 * options_.workers);
    // As the router's --admission with engines.
    router.scheduler.admission = {.kind = core::KvAdmissionOptions::Kind::kProtection, .alpha = 0.05};
    router.kind = ClusterDispatcher::Kind::kPlain;
    router.token_budget = options_.budget;
    router.prefill_budget = options_.prefill_budget;
    router.prefill_on_arrival = !rule->begins_prompts;
    router.keeps_prompts = rule->keeps_prompts;
    router.hand_off_age_s = options_.lease_s - options_.lease_margin_s;
    router.describe = [](const ServeRequest& request, core::RequestSpec& spec) {
      spec.predicted_output_tokens = request.output;
    };
    BFIO_ASSIGN_OR_RETURN(auto lookahead, core::MakeLookahead(rule->lookahead));
    BFIO_ASSIGN_OR_RETURN(auto made,
                          ClusterDispatcher::Make(router, &group_, &requests_, std::move(lookahead)));
    cluster_ = made.get();
    dispatcher_ = std::move(made);
    return absl::OkStatus();
  }

  absl::Status MakeDispatcher() {
    if (options_.prefill_ranks > 0) return MakeHandOffs();
    BFIO_ASSIGN_OR_RETURN(std::unique_ptr<ServeRule> rule, MakeServeRule(options_.rule, options_.budget));
    if (rule != nullptr) {
      dispatcher_ = std::make_unique<RuleDispatcher>(std::move(rule), &group_, &requests_);
      return absl::OkStatus();
    }
    ClusterDispatcher::Options router = RouterOptions();
    if (options_.rule == "bf_io_release") {
      router.kind = ClusterDispatcher::Kind::kPlain;
      router.token_budget = options_.budget;
    }
    BFIO_ASSIGN_OR_RETURN(dispatcher_, ClusterDispatcher::Make(router, &group_, &requests_));
    return absl::OkStatus();
  }

  ClusterDispatcher::Options RouterOptions() const {
    ClusterDispatcher::Options router{.policy = {.name = "bf_io_auto", .options = {.seed = options_.seed}},
                                      .kind = ClusterDispatcher::Kind::kOwn,
                                      .token_budget = kUnlimitedTokens,
                                      .ttft_objective_s = options_.ttft_objective_s,
                                      .cost = known_};
    router.scheduler.max_waiting = std::max(kLeastPool, 2 * Population());
    if (options_.lag > 1) router.scheduler.plan_mode = core::PlanMode::kPipelined;
    router.worker.kv_tokens = kUnlimitedKv;
    return router;
  }

  // Number of requests in the system of a closed loop.
  int64_t Population() const {
    const double slots = static_cast<double>(options_.slots) * options_.workers;
    return std::max<int64_t>(1, std::llround(options_.load * slots));
  }

  bool Counts(double at_s) const {
    return at_s >= result_.warmup_s && at_s < result_.warmup_s + result_.counted_s;
  }
  bool IsCounted(const ServeRequest& request) const { return Counts(request.arrival_s); }

  void Learn(const ServeStep& step) {
    if (!options_.fitted_cost) return;
    // As workers report them, one rank of each step in turn.
    const size_t rank = static_cast<size_t>(fitted_steps_) % step.loads.size();
    fit_.Add(step.loads, step.rank_s[rank], rank);
    if (++fitted_steps_ % kFitSteps != 0) return;
    known_ = fit_.cost().value_or(known_);
    group_.SetKnownCost(known_.batch);
    dispatcher_->SetCost(known_);
  }

  void Finish() {
    const double until_s = result_.warmup_s + result_.counted_s;
    result_.times = TimesOf(requests_, result_.warmup_s, until_s);
    if (options_.ttft_objective_s > 0) {
      const auto met = std::count_if(requests_.begin(), requests_.end(), [&](const ServeRequest& request) {
        return IsCounted(request) && request.first_token_s - request.arrival_s <= options_.ttft_objective_s;
      });
      const auto requests = static_cast<double>(std::max<int64_t>(1, result_.times.requests));
      result_.ttft_met = static_cast<double>(met) / requests;
    }
    result_.itl_s = LatenciesOf(std::move(gaps_));
    result_.step_s_mean = time_s_ / static_cast<double>(std::max<int64_t>(1, result_.steps));
    result_.idle_fraction = idle_s_ / time_s_;
    result_.idle_decode_fraction = idle_decode_s_ / time_s_;
    result_.idle_prefill_fraction = result_.idle_fraction - result_.idle_decode_fraction;
    // Between its steps the group may wait for prompts.
    const double all_s = options_.prefill_ranks > 0 ? result_.counted_s : time_s_;
    result_.throughput_tokens_per_s = static_cast<double>(tokens_) / all_s;
    result_.balanced_tokens_per_s = static_cast<double>(tokens_) / (all_s - idle_s_);
    result_.hand_off_s = LatenciesOf(std::move(hand_offs_));
    if (cluster_ != nullptr) result_.expired = cluster_->expired();
    result_.preempted = group_.preemptions();
  }

  const ServeOptions& options_;
  const Trace& trace_;
  const int64_t longest_output_;
  GroupCost known_;
  GroupFit fit_;
  int64_t fitted_steps_ = 0;
  Rng rng_;
  ServeResult result_;
  std::vector<ServeRequest> requests_;
  ServeGroup group_;
  std::unique_ptr<EngineDispatcher> dispatcher_;
  // The same, where the router's core hands prompts over.
  const ClusterDispatcher* cluster_ = nullptr;
  size_t row_ = 0;
  double next_arrival_s_ = 0, end_s_ = 0;
  int64_t counted_left_ = 0, in_system_ = 0;
  bool overloaded_ = false;
  // Gaps between tokens in the counted steps.
  std::vector<std::pair<double, int64_t>> gaps_;
  absl::flat_hash_set<ServeRequestIndex> used_;
  // Waits of hand-offs.
  std::vector<std::pair<double, int64_t>> hand_offs_;
  int64_t tokens_ = 0;
  double time_s_ = 0, idle_s_ = 0, idle_decode_s_ = 0;
};

absl::Status Check(const ServeOptions& options, const Trace& trace) {
  const auto bad = [&](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat(trace.source, ": ", why));
  };
  if (trace.requests.empty()) return bad("no requests");
  if (MomentsOf(trace).output <= 1) return bad("no request generates a second token");
  const auto longest = std::ranges::max(trace.requests, {}, [](const TraceRequest& request) {
    return request.prompt_tokens + request.output_tokens;
  });
  if (options.kv_tokens > 0 && longest.prompt_tokens + longest.output_tokens > options.kv_tokens)
    return bad("a request does not fit into --kv_tokens");
  return absl::OkStatus();
}

}  // namespace

BFIO_JSON_OF(Latencies, mean, p50, p99)
BFIO_JSON_OF(RequestTimes, requests, ttft_s, tpot_s, e2e_s)
BFIO_JSON_OF(ServeOptions, rule, workers, slots, budget, load, closed, lag, seed, tokens_per_step)
BFIO_JSON_OF(ServeResult, arrivals_per_s, warmup_s, counted_s, steps, step_s_mean, itl_s, idle_fraction,
             idle_decode_fraction, idle_prefill_fraction, throughput_tokens_per_s)

absl::StatusOr<ServeResult> RunServe(const ServeOptions& options, const Trace& trace) {
  BFIO_RETURN_IF_ERROR(Check(options, trace));
  return Run(options, trace).Go();
}

nlohmann::ordered_json ServeJson(const ServeOptions& options, const std::string& workload,
                                 const ServeResult& result) {
  nlohmann::ordered_json json = options;
  json["workload"] = workload;
  if (options.cost.terms.padded) json["padded"] = options.cost.terms.captured_rows;
  json["prompt_price_s"] = options.cost.terms.prompt_s;
  json["eager_price_s"] = options.cost.terms.eager_s;
  json["capacity_requests_per_s"] = result.capacity.requests_per_s;
  if (result.ttft_met) {
    json["ttft_objective_s"] = options.ttft_objective_s;
    json["ttft_met"] = *result.ttft_met;
  }
  json.update(nlohmann::ordered_json(result));
  json.update(nlohmann::ordered_json(result.times));
  return json;
}

namespace {

constexpr double kMostRows = 2048;

// One step of one rank in a perfectly balanced group.
struct LevelStep {
  // Number of requests that end in the step, which equals the number that begin.
  double ends = 0;
  double rows = 0, seconds = 0;
};

LevelStep StepOf(const LengthMoments& moments, const BatchCost& cost, double decodes) {
  LevelStep step;
  step.ends = decodes / (moments.output - 1);
  step.rows = decodes + step.ends * moments.prompt;
  const double beyond = std::max(0.0, step.rows - static_cast<double>(cost.b0_tokens));
  step.seconds = cost.c_s + cost.a_s_per_token * beyond +
                 cost.k1_s_per_pair * step.ends * moments.prompt_squared / 2 +
                 cost.k2_s_per_token * step.ends * moments.decode_context;
  return step;
}

}  // namespace

LengthMoments MomentsOf(const Trace& trace) {
  LengthMoments moments;
  const auto requests = static_cast<double>(trace.requests.size());
  for (const TraceRequest& request : trace.requests) {
    const auto prompt = static_cast<double>(request.prompt_tokens);
    const auto decodes = static_cast<double>(request.output_tokens - 1);
    moments.prompt += prompt / requests;
    moments.output += (decodes + 1) / requests;
    moments.prompt_squared += prompt * prompt / requests;
    moments.decode_context += (decodes * prompt + decodes * decodes / 2) / requests;
  }
  return moments;
}

LengthMoments WithoutPrompts(LengthMoments moments) {
  moments.prompt = moments.prompt_squared = 1;
  return moments;
}

double PromptSeconds(const Trace& trace, const BatchCost& cost, int64_t budget) {
  double seconds = 0;
  for (const TraceRequest& request : trace.requests) {
    for (int64_t done = 0; done < request.prompt_tokens; done += budget) {
      BatchLoad chunk;
      chunk.AddPrefill(std::min(budget, request.prompt_tokens - done), done);
      seconds += cost.Seconds(chunk) / static_cast<double>(trace.requests.size());
    }
  }
  return seconds;
}

int64_t StepsUntilFilled(const Trace& trace, double share) {
  // Tokens that the first `steps` decodes of all requests read together.
  const auto read = [&](int64_t steps) {
    double tokens = 0;
    for (const TraceRequest& request : trace.requests) {
      const auto decodes = static_cast<double>(std::min(steps, request.output_tokens - 1));
      tokens += decodes * static_cast<double>(request.prompt_tokens) + decodes * decodes / 2;
    }
    return tokens;
  };
  int64_t most = 0;
  for (const TraceRequest& request : trace.requests) most = std::max(most, request.output_tokens);
  const double wanted = share * read(most);
  const auto steps = std::views::iota(int64_t{0}, most);
  return std::ranges::partition_point(steps, [&](int64_t n) { return read(n) < wanted; }) - steps.begin();
}

ServeCapacity CapacityOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks, int64_t slots) {
  ServeCapacity best;
  for (int64_t decodes = 1; decodes <= slots; ++decodes) {
    const LevelStep step = StepOf(moments, cost, static_cast<double>(decodes));
    // One decode per rank is accepted with any number of rows, because the capacity must be positive.
    if (step.rows > kMostRows && decodes > 1) break;
    const double rate = ranks * step.ends / step.seconds;
    if (rate > best.requests_per_s) best = {rate, decodes, step.seconds};
  }
  return best;
}

double MeanOfLargestFactor(int32_t ranks, double jitter) {
  if (jitter <= 0) return 1;
  // E[max]: integrates the factor over cells of the normal distribution. The distribution function of the
  // largest is a power of that of one.
  constexpr double kMost = 9;
  constexpr int kCells = 20'000;
  const auto at_most = [&](double z) { return std::pow(std::erfc(-z / std::sqrt(2.0)) / 2, ranks); };
  double mean = 0, before = 0;
  for (int i = 1; i <= kCells; ++i) {
    const double z = -kMost + 2 * kMost * i / kCells, now = at_most(z);
    mean += (now - before) * std::exp(jitter * (z - kMost / kCells) - jitter * jitter / 2);
    before = now;
  }
  return mean;
}

std::optional<ServeFloor> FloorOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks,
                                  int64_t slots, double arrivals_per_s, double jitter) {
  constexpr int kHalvings = 60;
  const double slowest = MeanOfLargestFactor(ranks, jitter);
  const auto serves = [&](double decodes) {
    const LevelStep step = StepOf(moments, cost, decodes);
    return ranks * step.ends / (slowest * step.seconds) >= arrivals_per_s;
  };
  const ServeCapacity capacity = CapacityOf(moments, cost, ranks, slots);
  // Up to this number, more decodes give a higher rate.
  double low = 0, high = static_cast<double>(capacity.decodes);
  if (!serves(high)) return std::nullopt;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (serves(middle) ? high : low) = middle;
  }
  const double step_s = slowest * StepOf(moments, cost, high).seconds;
  constexpr double kFirstSteps = 1.5;
  return ServeFloor{kFirstSteps * step_s, step_s, (kFirstSteps + moments.output - 1) * step_s};
}

}  // namespace bfio::sim
