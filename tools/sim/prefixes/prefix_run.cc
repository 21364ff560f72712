#include "tools/sim/prefixes/prefix_run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/rng.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/prefixes/dispatcher.h"
#include "tools/sim/prefixes/prefix_workload.h"

namespace bfio::sim {
namespace {

constexpr double kWarmupShare = 0.2;
// Assumed duration of a turn in seconds, without the pause before it; determines the number of sessions under
// way at time 0.
constexpr double kUsualTurn = 5;
constexpr uint64_t kArrivalStream = 1 << 20;

RunTimes RunTimesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return {std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()), at(0.5),
          at(0.99)};
}

class Run {
 public:
  Run(const PrefixRunOptions& options, const WorkloadShape& shape)
      : options_(options), workload_(shape, options.seed) {
    result_.capacity_per_s = workload_.Capacity(options.engine) * options.ranks;
    for (int32_t g = 0; g < options.ranks; ++g) ranks_.emplace_back(options.engine);
  }

  absl::StatusOr<PrefixRunResult> Simulate() {
    dispatcher_ = MakeDirectDispatcher(options_.policy, ranks_);
    if (dispatcher_ == nullptr) {
      BFIO_ASSIGN_OR_RETURN(dispatcher_, MakeClusterDispatcher(options_, ranks_));
    }
    Begin();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at_s;
      if (event.rank == kGroup) {
        EndGroupStep();
      } else if (event.rank >= 0) {
        EndStep(event.rank);
      } else {
        Arrive(event.session);
      }
    }
    return Result();
  }

 private:
  static constexpr int32_t kNoRank = -1, kGroup = -2;
  struct Event {
    double at_s = 0;
    // Creation order, which decides between events at the same time.
    int64_t number = 0;
    // The rank whose step ends; kGroup: the group's step ends; kNoRank: the next turn of `session` arrives.
    int32_t rank = kNoRank;
    int64_t session = 0;
    bool operator>(const Event& other) const {
      return at_s != other.at_s ? at_s > other.at_s : number > other.number;
    }
  };
  struct Progress {
    double first_s = 0;
  };

  void Begin() {
    const WorkloadShape& shape = workload_.shape();
    const double sessions_per_s = options_.load * result_.capacity_per_s / shape.turns;
    end_s_ = static_cast<double>(options_.requests) / shape.turns / sessions_per_s;
    Rng rng = Rng(options_.seed).Fork(kArrivalStream);
    const double turn_s = shape.think_s + kUsualTurn;
    if (shape.turns > 1) {
      const auto under_way = std::llround(sessions_per_s * shape.turns * turn_s);
      for (int64_t i = 0; i < under_way; ++i) Add(rng.Uniform() * turn_s, true);
    }
    for (double at = rng.Exponential() / sessions_per_s; at < end_s_;
         at += rng.Exponential() / sessions_per_s)
      Add(at, false);
  }

  void Add(double at_s, bool under_way) {
    const auto number = static_cast<int64_t>(starts_.size());
    starts_.push_back(under_way);
    events_.push({at_s, events_made_++, kNoRank, number});
  }

  void Arrive(int64_t number) {
    auto [it, begins] = sessions_.try_emplace(number);
    PrefixWorkload::Session& session = it->second;
    if (begins)
      session =
          starts_[static_cast<size_t>(number)] ? workload_.UnderWay(number) : workload_.NewSession(number);
    std::optional<PrefixRequest> turn = workload_.NextTurn(session);
    if (!turn) {
      sessions_.erase(it);
      return;
    }
    turn->id = ++last_id_;
    turn->arrived_s = now_;
    const PrefixRequest& request = *(requests_[turn->id] = std::make_unique<PrefixRequest>(std::move(*turn)));
    Send(dispatcher_->Arrived(request));
    if (!Counts(request)) return;
    int64_t waiting = dispatcher_->waiting();
    for (const EngineModel& rank : ranks_) waiting += rank.waiting();
    ++queue_samples_;
    queue_sum_ += static_cast<double>(waiting);
    result_.queue_max = std::max(result_.queue_max, waiting);
  }

  void EndStep(int32_t rank) {
    const EngineStep step = ranks_[static_cast<size_t>(rank)].EndStep();
    for (const EngineStep::First& first : step.first_tokens) {
      first_s_[first.request->id] = now_;
      if (!Counts(*first.request)) continue;
      ttft_s_.push_back(now_ - first.request->arrived_s);
      prompt_tokens_ += static_cast<double>(first.request->prompt_tokens);
      cached_tokens_ += static_cast<double>(first.cached);
    }
    Send(dispatcher_->Stepped(rank, step));
    for (const PrefixRequest* request : step.finished) End(*request);
    if (!ranks_[static_cast<size_t>(rank)].in_step()) Start(rank);
  }

  void EndGroupStep() {
    for (int32_t g = 0; g < options_.ranks; ++g)
      if (ranks_[static_cast<size_t>(g)].in_step()) EndStep(g);
    group_in_step_ = false;
    StartGroup();
  }

  void StartGroup() {
    double longest_s = 0;
    for (EngineModel& rank : ranks_) rank.SetLevel(dispatcher_->level_s());
    for (EngineModel& rank : ranks_)
      if (!rank.idle()) longest_s = std::max(longest_s, rank.BeginStep());
    if (longest_s == 0) return;
    group_in_step_ = true;
    events_.push({now_ + longest_s, events_made_++, kGroup, 0});
  }

  void End(const PrefixRequest& request) {
    if (now_ >= kWarmupShare * end_s_ && now_ < end_s_) ++ended_;
    const auto first = first_s_.find(request.id);
    if (Counts(request)) {
      e2e_s_.push_back(now_ - request.arrived_s);
      if (request.output_tokens > 1)
        tpot_s_.push_back((now_ - first->second) / static_cast<double>(request.output_tokens - 1));
    }
    first_s_.erase(first);
    const auto session = sessions_.find(request.session);
    if (session->second.ended) {
      sessions_.erase(session);
    } else if (const double next = now_ + workload_.Think(session->second); next < end_s_) {
      events_.push({next, events_made_++, kNoRank, request.session});
    }
    requests_.erase(request.id);
  }

  void Send(const std::vector<Dispatch>& sent) {
    for (const Dispatch& dispatch : sent)
      ranks_[static_cast<size_t>(dispatch.rank)].Submit(*dispatch.request);
    for (const Dispatch& dispatch : sent) Start(dispatch.rank);
  }

  void Start(int32_t rank) {
    if (options_.barrier) {
      if (!group_in_step_) StartGroup();
      return;
    }
    EngineModel& engine = ranks_[static_cast<size_t>(rank)];
    if (engine.in_step() || engine.idle()) return;
    events_.push({now_ + engine.BeginStep(), events_made_++, rank, 0});
  }

  bool Counts(const PrefixRequest& request) const { return request.arrived_s >= kWarmupShare * end_s_; }

  PrefixRunResult Result() {
    result_.requests = static_cast<int64_t>(e2e_s_.size());
    result_.ttft_s = RunTimesOf(std::move(ttft_s_));
    result_.tpot_s = RunTimesOf(std::move(tpot_s_));
    result_.e2e_s = RunTimesOf(std::move(e2e_s_));
    result_.throughput_per_s = static_cast<double>(ended_) / ((1 - kWarmupShare) * end_s_);
    result_.hit_share = prompt_tokens_ > 0 ? cached_tokens_ / prompt_tokens_ : 0;
    if (dispatcher_->expected_tokens() > 0) {
      result_.found_share = static_cast<double>(dispatcher_->found_tokens()) /
                            static_cast<double>(dispatcher_->expected_tokens());
    }
    result_.queue_mean = queue_samples_ > 0 ? queue_sum_ / static_cast<double>(queue_samples_) : 0;
    for (const EngineModel& rank : ranks_) result_.preemptions += rank.preemptions();
    return result_;
  }

  const PrefixRunOptions options_;
  const PrefixWorkload workload_;
  std::vector<EngineModel> ranks_;
  std::unique_ptr<PrefixDispatcher> dispatcher_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t events_made_ = 0;
  double now_ = 0, end_s_ = 0;
  // Used only with a barrier.
  bool group_in_step_ = false;
  // By session: whether it was under way at time 0.
  std::vector<bool> starts_;
  absl::flat_hash_map<int64_t, PrefixWorkload::Session> sessions_;
  absl::flat_hash_map<core::RequestId, std::unique_ptr<PrefixRequest>> requests_;
  absl::flat_hash_map<core::RequestId, double> first_s_;
  core::RequestId last_id_ = 0;
  std::vector<double> ttft_s_, tpot_s_, e2e_s_;
  double prompt_tokens_ = 0, cached_tokens_ = 0, queue_sum_ = 0;
  int64_t queue_samples_ = 0, ended_ = 0;
  PrefixRunResult result_;
};

}  // namespace

absl::StatusOr<PrefixRunResult> RunPrefixes(const PrefixRunOptions& options) {
  BFIO_ASSIGN_OR_RETURN(const WorkloadShape shape, FindWorkload(options.workload));
  return Run(options, shape).Simulate();
}

nlohmann::ordered_json PrefixRunJson(const PrefixRunOptions& options, const PrefixRunResult& result) {
  nlohmann::ordered_json json = {{"workload", options.workload},
                                 {"ranks", options.ranks},
                                 {"barrier", options.barrier},
                                 {"load", options.load},
                                 {"policy", options.policy},
                                 {"seed", options.seed},
                                 {"engine_caches", options.engine.caches},
                                 {"ttft_objective_s", options.ttft_objective_s},
                                 {"capacity_per_s", result.capacity_per_s},
                                 {"requests", result.requests}};
  const auto add = [&](const std::string& name, const RunTimes& times) {
    json[name + "_mean"] = times.mean;
    json[name + "_p50"] = times.p50;
    json[name + "_p99"] = times.p99;
  };
  add("ttft_s", result.ttft_s);
  add("tpot_s", result.tpot_s);
  add("e2e_s", result.e2e_s);
  json["throughput_per_s"] = result.throughput_per_s;
  json["hit_share"] = result.hit_share;
  json["found_share"] = result.found_share;
  json["queue_mean"] = result.queue_mean;
  json["queue_max"] = result.queue_max;
  json["preemptions"] = result.preemptions;
  return json;
}

}  // namespace bfio::sim
