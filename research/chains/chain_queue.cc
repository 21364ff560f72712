#include "research/chains/chain_queue.h"

#include <deque>
#include <limits>
#include <queue>
#include <tuple>

#include "common/base/rng.h"

namespace bfio::sim {
namespace {

class Service {
 public:
  Service(absl::Span<const core::ChainRate> chains, absl::Span<const ChainJob> jobs, const JobOnChain& time)
      : jobs_(jobs), time_(time), own_(chains.size()), served_(jobs.size()) {
    for (const core::ChainRate& chain : chains) views_.push_back({chain.rate, chain.capacity, 0});
  }

  void EndsUntil(double time) {
    while (!running_.empty() && running_.top().time <= time) {
      const Running ended = running_.top();
      running_.pop();
      core::ChainView& chain = views_[ended.chain];
      --chain.jobs;
      std::deque<size_t>& queue = own_[ended.chain].empty() ? central_ : own_[ended.chain];
      if (queue.empty()) continue;
      if (&queue == &central_) ++chain.jobs;
      Begin(queue.front(), ended.chain, ended.time);
      queue.pop_front();
    }
  }

  void Arrive(size_t job, core::ChainDispatcher& dispatcher) {
    const int32_t k = dispatcher.OnArrival(views_);
    if (k == core::kCentralQueue) {
      central_.push_back(job);
      return;
    }
    if (views_[k].free()) {
      Begin(job, k, jobs_[job].arrival);
    } else {
      own_[k].push_back(job);
    }
    ++views_[k].jobs;
  }

  std::vector<ServedJob> Take() { return std::move(served_); }

 private:
  struct Running {
    double time = 0;
    int64_t turn = 0;
    int32_t chain = 0;

    bool operator<(const Running& other) const {
      return std::tie(other.time, other.turn) < std::tie(time, turn);
    }
  };

  void Begin(size_t job, int32_t k, double time) {
    ServedJob& served = served_[job];
    const double service = time_ ? time_(job, k) : jobs_[job].size / views_[k].rate;
    served = {jobs_[job].arrival, time - jobs_[job].arrival, service, k};
    running_.push({time + served.service, ++turns_, k});
  }

  absl::Span<const ChainJob> jobs_;
  const JobOnChain& time_;
  std::vector<core::ChainView> views_;
  std::vector<std::deque<size_t>> own_;
  std::deque<size_t> central_;
  std::priority_queue<Running> running_;
  int64_t turns_ = 0;
  std::vector<ServedJob> served_;
};

}  // namespace

std::vector<ChainJob> PoissonJobs(double rate, int64_t count, uint64_t seed) {
  Rng times = Rng(seed).Fork(1), sizes = Rng(seed).Fork(2);
  std::vector<ChainJob> jobs;
  jobs.reserve(count);
  double at = 0;
  for (int64_t i = 0; i < count; ++i) {
    at += times.Exponential() / rate;
    jobs.push_back({at, sizes.Exponential()});
  }
  return jobs;
}

std::vector<ServedJob> ServeOnChains(absl::Span<const core::ChainRate> chains,
                                     core::ChainDispatcher& dispatcher, absl::Span<const ChainJob> jobs,
                                     const JobOnChain& time) {
  Service service(chains, jobs, time);
  for (size_t i = 0; i < jobs.size(); ++i) {
    service.EndsUntil(jobs[i].arrival);
    service.Arrive(i, dispatcher);
  }
  service.EndsUntil(std::numeric_limits<double>::infinity());
  return service.Take();
}

}  // namespace bfio::sim
