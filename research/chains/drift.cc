#include "research/chains/drift.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "chains/core/tuning.h"
#include "common/base/rng.h"

namespace bfio::sim {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
// As in the router: the memory of the measured rate, the time between checks, and the time for a drain.
constexpr double kRateMemory = 60, kCheck = 30, kDrainTimeout = 60;
// Mean service times within which most running requests end.
constexpr double kDrainServices = 3;
// More than the servers' memory holds, so that it does not limit a chain's requests.
constexpr int64_t kMostRequests = 64;

struct DriftJob {
  double arrival = 0, size = 1;
  bool high = false;
};

// The demand at a time within a cycle.
double DemandAt(const DriftRun& run, double at) {
  if (at < run.hold) return run.low;
  at -= run.hold;
  if (at < run.ramp) return run.low + (run.high - run.low) * at / run.ramp;
  at -= run.ramp;
  if (at < run.hold) return run.high;
  return run.high - (run.high - run.low) * (at - run.hold) / run.ramp;
}

// A Poisson process with the largest rate, thinned to the demand.
std::vector<DriftJob> Jobs(const DriftRun& run, double capacity) {
  Rng times = Rng(run.pool.seed).Fork(1), sizes = Rng(run.pool.seed).Fork(2);
  const double cycle = 2 * (run.hold + run.ramp), most = std::max(run.low, run.high);
  std::vector<DriftJob> jobs;
  double at = 0;
  while ((at += times.Exponential() / (most * capacity)) < cycle * static_cast<double>(run.cycles)) {
    const double demand = DemandAt(run, std::fmod(at, cycle));
    if (times.Uniform() * most < demand)
      jobs.push_back({at, sizes.Exponential(), demand > (run.low + run.high) / 2});
  }
  return jobs;
}

core::BlockSizes Sizes() {
  return {kBloomBlocks, std::llround(1e9 * kBloomBlockGb), std::llround(1e9 * kBloomCacheGb)};
}

std::vector<core::PoolServer> FreeServers(const WideAreaPool& pool) {
  std::vector<core::PoolServer> servers;
  for (const core::ChainServer& from : pool.servers) {
    servers.push_back({from.name, std::llround(1e9 * from.memory)});
    servers.back().times = {from.compute, from.communication};
  }
  return servers;
}

class Drift {
 public:
  // `rate`: the measured rate at the start.
  Drift(const DriftRun& run, std::vector<core::PoolServer> servers, const core::PoolPlan& plan, bool retunes,
        double rate, std::vector<DriftJob> jobs)
      : run_(run), servers_(std::move(servers)), retunes_(retunes), rate_(rate), jobs_(std::move(jobs)) {
    Begin(plan);
    response_.resize(jobs_.size());
  }

  void Run() {
    double check = 0;
    while (next_ < jobs_.size() || !running_.empty() || !waiting_.empty()) {
      const double arrival = next_ < jobs_.size() ? jobs_[next_].arrival : kForever;
      const double end = running_.empty() ? kForever : running_.top().time;
      const double now = std::min({arrival, end, loaded_at_, drained_by_, check});
      if (now == end) {
        --chains_[running_.top().chain].running;
        running_.pop();
        if (compose_for_.has_value() && running_.empty()) Load(now);
      } else if (now == drained_by_) {
        Break(now);
      } else if (now == loaded_at_) {
        loaded_at_ = kForever;
        pauses_s_ += now - drained_at_;
        Begin(
            *core::PlanChains(servers_, Sizes(), kMostRequests, *std::exchange(compose_for_, std::nullopt)));
      } else if (now == arrival) {
        rate_ = rate_ * std::exp((rate_at_ - now) / kRateMemory) + 1 / kRateMemory;
        rate_at_ = now;
        waiting_.push_back(next_++);
      } else {
        if (retunes_ && !compose_for_.has_value()) Check(now);
        check += kCheck;
      }
      Assign(now);
    }
  }

  // Mean response of all jobs, or of those that arrived at a demand above or below the middle.
  double Mean(std::optional<bool> high) const {
    double sum = 0, count = 0;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (high.has_value() && jobs_[i].high != *high) continue;
      sum += response_[i];
      ++count;
    }
    return sum / count;
  }
  int64_t changes() const { return changes_; }
  // Time in which no chain took jobs.
  double pauses_s() const { return pauses_s_; }

 private:
  struct Chain {
    double time = 0;
    int64_t slots = 0, running = 0;
  };
  struct Running {
    double time = 0;
    size_t chain = 0, job = 0;

    bool operator<(const Running& other) const { return other.time < time; }
  };

  void Begin(const core::PoolPlan& plan) {
    standing_.clear();
    chains_.clear();
    for (const core::ServerChain& chain : plan.chains) {
      standing_.push_back({chain.rate(), chain.capacity, core::ServersOf(chain)});
      chains_.push_back({chain.time, chain.capacity});
    }
  }

  void Check(double now) {
    const double rate = rate_ * std::exp((rate_at_ - now) / kRateMemory);
    double service_s = 0;
    for (const Chain& chain : chains_) service_s = std::max(service_s, chain.time);
    const double drain_s = std::min(kDrainServices * service_s, kDrainTimeout);
    const auto better = core::BetterComposition(servers_, Sizes(), kMostRequests, rate,
                                                core::RateBand(rate, kRateMemory), standing_);
    if (!patience_.Check(now, better, {kRateMemory, drain_s + run_.loading})) return;
    patience_.Forget();
    compose_for_ = better->demand;
    drained_at_ = now;
    ++changes_;
    drained_by_ = now + kDrainTimeout;
    if (running_.empty()) Load(now);
  }

  void Load(double now) {
    drained_by_ = kForever;
    loaded_at_ = now + run_.loading;
  }

  // Stops the running jobs; the new chains do their remaining work.
  void Break(double now) {
    std::vector<size_t> jobs;
    for (; !running_.empty(); running_.pop()) {
      const Running& one = running_.top();
      jobs_[one.job].size = (one.time - now) / chains_[one.chain].time;
      jobs.push_back(one.job);
    }
    waiting_.insert(waiting_.begin(), jobs.begin(), jobs.end());
    Load(now);
  }

  // JFFC.
  void Assign(double now) {
    while (!waiting_.empty() && !compose_for_.has_value()) {
      size_t fastest = chains_.size();
      for (size_t k = 0; k < chains_.size(); ++k) {
        if (chains_[k].running >= chains_[k].slots) continue;
        if (fastest == chains_.size() || chains_[k].time < chains_[fastest].time) fastest = k;
      }
      if (fastest == chains_.size()) return;
      const size_t job = waiting_.front();
      waiting_.pop_front();
      const double end = now + jobs_[job].size * chains_[fastest].time;
      response_[job] = end - jobs_[job].arrival;
      ++chains_[fastest].running;
      running_.push({end, fastest, job});
    }
  }

  const DriftRun& run_;
  const std::vector<core::PoolServer> servers_;
  const bool retunes_;
  // The measured rate at `rate_at_`.
  double rate_, rate_at_ = 0;
  std::vector<DriftJob> jobs_;
  std::vector<double> response_;
  std::vector<core::ExistingChain> standing_;
  std::vector<Chain> chains_;
  std::priority_queue<Running> running_;
  std::deque<size_t> waiting_;
  size_t next_ = 0;
  core::RetunePatience patience_;
  // In a change-over: the demand for which to compose.
  std::optional<double> compose_for_;
  double drained_at_ = 0, drained_by_ = kForever, loaded_at_ = kForever, pauses_s_ = 0;
  int64_t changes_ = 0;
};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> RunDrift(const DriftRun& run, const std::string& tuning) {
  if (tuning != "low" && tuning != "high" && tuning != "retuned") {
    return absl::InvalidArgumentError(
        absl::StrCat("tuning '", tuning, "' is unknown, choose low, high or retuned"));
  }
  const std::vector<core::PoolServer> servers =
      FreeServers(DrawPool(run.pool.rtts, run.pool.servers, run.pool.fast, run.pool.seed));
  // No composition carries this demand, so the result is the one with the largest rate.
  constexpr double kBeyond = 1e9;
  const auto most = core::PlanChains(servers, Sizes(), kMostRequests, kBeyond);
  if (!most.ok()) return absl::FailedPreconditionError(most.status().message());
  const double capacity = core::TotalRate(most->chains);
  const double low = run.low * capacity, high = run.high * capacity;
  const auto plan = core::PlanChains(servers, Sizes(), kMostRequests, tuning == "high" ? high : low);
  Drift drift(run, servers, *plan, tuning == "retuned", low, Jobs(run, capacity));
  drift.Run();
  return nlohmann::ordered_json{{"seed", run.pool.seed},
                                {"servers", run.pool.servers},
                                {"fast", run.pool.fast},
                                {"tuning", tuning},
                                {"capacity_jobs_per_s", capacity},
                                {"response_s", drift.Mean(std::nullopt)},
                                {"low_response_s", drift.Mean(false)},
                                {"high_response_s", drift.Mean(true)},
                                {"changes", drift.changes()},
                                {"pauses_s", drift.pauses_s()}};
}

}  // namespace bfio::sim
