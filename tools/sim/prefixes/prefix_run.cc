#include "tools/sim/prefixes/prefix_run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/rng.h"
#include "common/base/status_macros.h"
#include "tools/sim/rank/cluster_dispatcher.h"
#include "tools/sim/rank/shared.h"

namespace bfio::sim {
namespace {

constexpr double kWarmupShare = 0.2;
// Assumed duration of a turn in seconds, without the pause before it; determines the number of sessions under
// way at time 0.
constexpr double kUsualTurn = 5;
constexpr uint64_t kSessionStream = 1 << 20;
// Share of a rank's memory that the router leaves free in front of engines (router/app).
constexpr double kFreeShare = 0.05;

class SessionTraffic final : public Traffic {
 public:
  SessionTraffic(const PrefixRunOptions& options, PrefixWorkload workload)
      : options_(options), workload_(std::move(workload)) {
    const WorkloadShape& shape = workload_.shape();
    result_.capacity_per_s = workload_.Capacity(options.engine) * options.ranks;
    const double sessions_per_s = options.load * result_.capacity_per_s / shape.turns;
    end_s_ = static_cast<double>(options.requests) / shape.turns / sessions_per_s;
    if (const std::vector<double> given = workload_.Arrivals(sessions_per_s, options.requests);
        !given.empty()) {
      for (size_t i = 0; i < given.size(); ++i) Add(given[i], static_cast<int64_t>(i));
      end_s_ = given.back();
      return;
    }
    Rng rng = Rng(options.seed).Fork(kSessionStream);
    const double turn_s = shape.think_s + kUsualTurn;
    if (shape.turns > 1) under_way_ = std::llround(sessions_per_s * shape.turns * turn_s);
    for (int64_t i = 0; i < under_way_; ++i) Add(rng.Uniform() * turn_s, i);
    int64_t number = under_way_;
    for (double at = rng.Exponential() / sessions_per_s; at < end_s_;
         at += rng.Exponential() / sessions_per_s)
      Add(at, number++);
  }

  absl::StatusOr<PrefixRunResult> Run() {
    const EngineOptions& engine = options_.engine;
    ServeGroup group({.ranks = options_.ranks,
                      .slots = engine.slots,
                      .cost = {engine.cost},
                      .barrier = options_.barrier,
                      .seed = options_.seed,
                      .longest_output = workload_.shape().max_new_tokens,
                      .kv_tokens = engine.kv_tokens,
                      .caches = engine.caches},
                     &requests_);
    std::unique_ptr<EngineDispatcher> dispatcher =
        MakeDirectDispatcher(options_.policy, engine.token_budget, &group, &requests_);
    const ClusterDispatcher* cluster = nullptr;
    if (dispatcher == nullptr) {
      ClusterDispatcher::Options router{
          .policy = {.name = options_.policy, .options = {.seed = options_.seed}},
          .kind = engine.metered ? ClusterDispatcher::Kind::kMetered : ClusterDispatcher::Kind::kPlain,
          .token_budget = engine.token_budget,
          .ttft_objective_s = options_.ttft_objective_s,
          .cost = GroupCost{engine.cost}};
      router.scheduler.max_waiting = int64_t{1} << 40;
      router.scheduler.admission = {.kind = core::KvAdmissionOptions::Kind::kProtection, .alpha = kFreeShare};
      router.worker.kv_tokens = engine.kv_tokens;
      router.worker.prefix_cache = true;
      BFIO_ASSIGN_OR_RETURN(auto made, ClusterDispatcher::Make(router, &group, &requests_));
      cluster = made.get();
      dispatcher = std::move(made);
    }
    group_ = &group;
    dispatcher_ = dispatcher.get();
    BFIO_RETURN_IF_ERROR(RunEngines(group, *this, *dispatcher));
    if (cluster != nullptr && cluster->expected_tokens() > 0) {
      result_.found_share =
          static_cast<double>(cluster->found_tokens()) / static_cast<double>(cluster->expected_tokens());
    }
    return Result();
  }

  double NextArrival() const override { return turns_.empty() ? kNever : std::get<0>(turns_.top()); }

  std::optional<ServeRequestIndex> Arrive(double now_s) override {
    const int64_t number = std::get<2>(turns_.top());
    turns_.pop();
    auto [it, begins] = sessions_.try_emplace(number);
    if (begins) it->second = number < under_way_ ? workload_.UnderWay(number) : workload_.NewSession(number);
    std::optional<ServeRequest> turn = workload_.NextTurn(it->second);
    if (!turn) {
      sessions_.erase(it);
      return std::nullopt;
    }
    turn->arrival_s = now_s;
    turn->id = requests_.size() + 1;
    requests_.push_back(*std::move(turn));
    return std::ssize(requests_) - 1;
  }

  void Arrived(ServeRequestIndex index) override {
    if (!Counts(requests_[index])) return;
    int64_t waiting = dispatcher_->waiting();
    for (const ServeRank& rank : group_->ranks()) waiting += rank.queued();
    ++queue_samples_;
    queue_sum_ += static_cast<double>(waiting);
    result_.queue_max = std::max(result_.queue_max, waiting);
  }

  void Stepped(const ServeStep& step, double now_s) override {
    if (now_s >= kWarmupShare * end_s_ && now_s < end_s_)
      busy_s_ = std::accumulate(step.rank_s.begin(), step.rank_s.end(), busy_s_);
    for (const auto& [index, rank] : step.ended) {
      ServeRequest& request = requests_[index];
      request.blocks = {};
      request.prefix = nullptr;
      if (now_s >= kWarmupShare * end_s_ && now_s < end_s_) ++ended_;
      const auto session = sessions_.find(request.session);
      if (session->second.ended) {
        sessions_.erase(session);
      } else if (const double next = now_s + workload_.Think(session->second); next < end_s_) {
        Add(next, request.session);
      }
    }
  }

 private:
  void Add(double at_s, int64_t session) { turns_.emplace(at_s, turns_made_++, session); }
  bool Counts(const ServeRequest& request) const { return request.arrival_s >= kWarmupShare * end_s_; }

  PrefixRunResult Result() {
    result_.times = TimesOf(requests_, kWarmupShare * end_s_);
    int64_t prompt_tokens = 0, cached_tokens = 0;
    for (const ServeRequest& request : requests_) {
      if (!Counts(request)) continue;
      prompt_tokens += request.prompt;
      cached_tokens += request.cached;
    }
    const double counted_s = (1 - kWarmupShare) * end_s_;
    result_.throughput_per_s = static_cast<double>(ended_) / counted_s;
    result_.idle_share = 1 - busy_s_ / (options_.ranks * counted_s);
    if (prompt_tokens > 0)
      result_.hit_share = static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
    result_.queue_mean = queue_samples_ > 0 ? queue_sum_ / static_cast<double>(queue_samples_) : 0;
    result_.preemptions = group_->preemptions();
    return result_;
  }

  const PrefixRunOptions options_;
  const PrefixWorkload workload_;
  std::vector<ServeRequest> requests_;
  const ServeGroup* group_ = nullptr;
  const EngineDispatcher* dispatcher_ = nullptr;
  // The turns to come: their times, a number in order of creation, and their sessions.
  using Turn = std::tuple<double, int64_t, int64_t>;
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns_;
  int64_t turns_made_ = 0;
  // Sessions before this number were under way at time 0.
  int64_t under_way_ = 0;
  absl::flat_hash_map<int64_t, PrefixWorkload::Session> sessions_;
  double end_s_ = 0, queue_sum_ = 0, busy_s_ = 0;
  int64_t queue_samples_ = 0, ended_ = 0;
  PrefixRunResult result_;
};

}  // namespace

absl::StatusOr<PrefixRunResult> RunPrefixes(const PrefixRunOptions& options) {
  if (options.trace != nullptr) {
    return SessionTraffic(options, PrefixWorkload(options.trace, options.engine.kv_tokens, options.seed))
        .Run();
  }
  BFIO_ASSIGN_OR_RETURN(const WorkloadShape shape, FindWorkload(options.workload));
  return SessionTraffic(options, PrefixWorkload(shape, options.seed)).Run();
}

BFIO_JSON_OF(PrefixRunOptions, workload, ranks, barrier, load, policy, seed, ttft_objective_s)
BFIO_JSON_OF(PrefixRunResult, capacity_per_s, throughput_per_s, hit_share, idle_share, found_share,
             queue_mean, queue_max, preemptions)

nlohmann::ordered_json PrefixRunJson(const PrefixRunOptions& options, const PrefixRunResult& result) {
  nlohmann::ordered_json json = options;
  json["engine_caches"] = options.engine.caches;
  json["requests"] = result.times.requests;
  for (const auto& [name, times] : {std::pair<const char*, const Latencies&>{"ttft_s", result.times.ttft_s},
                                    {"tpot_s", result.times.tpot_s},
                                    {"e2e_s", result.times.e2e_s}}) {
    json[absl::StrCat(name, "_mean")] = times.mean;
    json[absl::StrCat(name, "_p50")] = times.p50;
    json[absl::StrCat(name, "_p99")] = times.p99;
  }
  json.update(nlohmann::ordered_json(result));
  return json;
}

}  // namespace bfio::sim
