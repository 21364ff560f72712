#include "research/admission/one_worker.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace bfio::sim {
namespace {

constexpr int64_t kRoundsPerLook = 4096;

class KvWorker {
 public:
  KvWorker(AdmissionRule& rule, const std::vector<KvArrival>& arrivals, const KvRunOptions& options)
      : rule_(rule), arrivals_(arrivals), options_(options), began_round_(arrivals.size(), -1) {
    for (const KvArrival& arrival : arrivals) {
      prompt_.push_back(arrival.prompt);
      left_.push_back(arrival.output);
    }
    run_.began.assign(arrivals.size(), -1);
    run_.done.assign(arrivals.size(), -1);
  }

  KvRun Run() {
    while (run_.completed < static_cast<int64_t>(arrivals_.size()) && round_ < options_.max_rounds) {
      if (running() == 0 && rule_.waiting() == 0) SkipToArrival();
      TakeArrivals();
      const int64_t before = run_.completed;
      Round();
      EndRequests();
      if (run_.completed > before) last_end_ = round_;
      if (round_ - last_end_ > options_.loop_rounds) run_.looped = true;
      if (run_.looped) break;
      if (options_.go_on && round_ % kRoundsPerLook == 0 && !options_.go_on()) break;
    }
    run_.rounds = round_;
    if (run_.completed > 0) run_.mean_latency = run_.total_latency / static_cast<double>(run_.completed);
    return std::move(run_);
  }

 private:
  int64_t running() const { return running_; }

  void SkipToArrival() {
    if (next_ == arrivals_.size() || arrivals_[next_].at <= time_) return;
    time_ = arrivals_[next_].at;
    // Integer rounds: a request that arrives during a round waits for the next one.
    if (!options_.round_seconds) time_ = std::ceil(time_), round_ = last_end_ = static_cast<int64_t>(time_);
  }

  void TakeArrivals() {
    for (; next_ < arrivals_.size() && arrivals_[next_].at <= time_; ++next_) {
      const KvArrival& arrival = arrivals_[next_];
      rule_.OnArrival(
          {next_, arrival.prompt, arrival.believed > 0 ? arrival.believed : arrival.output, arrival.most});
    }
  }

  void Round() {
    if (Memory() > options_.rule.memory) ++run_.overflows;
    rule_.Decide(round_, decision_);
    WatchForCircles();
    for (const RequestId id : decision_.evict) {
      run_.repeated_tokens += TakeOut(id) + prompt_[id];
      prompt_[id] = arrivals_[id].prompt;
      left_[id] = arrivals_[id].output;
      ++run_.evictions;
    }
    for (const RequestId id : decision_.preempt) {
      const int64_t made = TakeOut(id);
      prompt_[id] += made;
      left_[id] -= made;
      run_.repeated_tokens += prompt_[id];
      ++run_.preemptions;
    }
    const int64_t decoding = running_;
    int64_t begun = 0;
    for (const RequestId id : decision_.begin) {
      began_round_[id] = round_;
      run_.began[id] = time_;
      base_ += prompt_[id] - round_;
      ++running_;
      ends_[round_ + left_[id]].push_back(id);
      begun += prompt_[id];
    }
    const int64_t tokens = decoding + begun;
    const int64_t unseen = options_.rule.counts_first_round ? 0 : begun;
    run_.peak_memory = std::max(run_.peak_memory, Memory() - unseen);
    if (options_.memory_every > 0 && round_ % options_.memory_every == 0) {
      run_.memory_time.push_back(time_);
      run_.memory.push_back(Memory());
    }
    time_ += options_.round_seconds ? options_.round_seconds(tokens) : 1;
    ++round_;
  }

  // Removes a running request; returns the tokens it has generated since it started.
  int64_t TakeOut(RequestId id) {
    const int64_t began = std::exchange(began_round_[id], -1);
    base_ -= prompt_[id] - began;
    --running_;
    auto& ends = ends_[began + left_[id]];
    ends.erase(std::find(ends.begin(), ends.end(), id));
    return round_ - began;
  }

  void WatchForCircles() {
    if (decision_.evict.empty()) return;
    const bool all = static_cast<int64_t>(decision_.evict.size()) == running_;
    const bool again = all && decision_.evict == last_evicted_ && run_.completed == last_completed_;
    repeats_ = again ? repeats_ + 1 : 1;
    last_evicted_ = decision_.evict;
    last_completed_ = run_.completed;
    if (all && repeats_ >= KvRun::kRepeats) run_.looped = true;
  }

  void EndRequests() {
    const auto ends = ends_.find(round_);
    if (ends == ends_.end()) return;
    for (const RequestId id : ends->second) {
      rule_.OnEnd(id);
      base_ -= prompt_[id] - began_round_[id];
      --running_;
      run_.done[id] = time_;
      run_.total_latency += time_ - arrivals_[id].at;
      ++run_.completed;
      // At the end of its last round it held its prompt and all its tokens.
      run_.peak_memory = std::max(run_.peak_memory, arrivals_[id].prompt + arrivals_[id].output);
    }
    ends_.erase(ends);
  }

  int64_t Memory() const { return base_ + running_ * round_; }

  AdmissionRule& rule_;
  const std::vector<KvArrival>& arrivals_;
  const KvRunOptions& options_;
  KvRun run_;
  AdmissionRound decision_;
  std::vector<int64_t> began_round_;
  // Current prompt (including tokens generated before a preemption) and remaining output of each request.
  std::vector<int64_t> prompt_, left_;
  std::vector<RequestId> last_evicted_;
  int64_t last_completed_ = 0;
  int repeats_ = 0;
  // By the round at whose beginning the requests have ended.
  std::map<int64_t, std::vector<RequestId>> ends_;
  size_t next_ = 0;
  int64_t round_ = 0, last_end_ = 0, running_ = 0, base_ = 0;
  double time_ = 0;
};

}  // namespace

absl::StatusOr<KvRun> RunOneWorker(absl::string_view rule, const std::vector<KvArrival>& arrivals,
                                   const KvRunOptions& options) {
  BFIO_ASSIGN_OR_RETURN(auto made, MakeAdmissionRule(rule, options.rule));
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const int64_t need = arrivals[i].prompt + arrivals[i].output;
    if (need <= options.rule.memory) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("request ", i, " needs ", need, " KV tokens, but the worker has ", options.rule.memory));
  }
  return KvWorker(*made, arrivals, options).Run();
}

}  // namespace bfio::sim
