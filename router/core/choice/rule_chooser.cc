#include "router/core/choice/rule_chooser.h"

#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "router/core/policy/baselines/baselines.h"
#include "router/core/policy/bf_io_auto/bf_io_auto.h"

namespace bfio::core {
namespace {

// Steps between two choices. Few choices suffice, because means over many stays change slowly.
constexpr int64_t kChooseEvery = 64;
static_assert(kChooseEvery % RuleChooser::kWatchEvery == 0);
// Largest age of a request at the start of a replay, steps.
constexpr int64_t kOldest = 32768;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// Maximum number of requests that wait for a slot; further ones are dropped.
constexpr size_t kMostWaiting = 4096;

}  // namespace

absl::string_view PlacementRuleName(PlacementRule rule) {
  switch (rule) {
    case PlacementRule::kHeadroom: return "headroom";
    case PlacementRule::kHorizon: return "horizon";
    case PlacementRule::kCounts: return "counts";
    case PlacementRule::kRefill: return "refill";
  }
  return "unknown";
}

void RuleChooser::SetRules(absl::Span<const PlacementRule> rules) {
  candidates_.clear();
  for (const PlacementRule rule : rules) candidates_.push_back({rule});
  rule_ = rules.empty() ? PlacementRule::kHeadroom : rules.front();
  obeys_ = false;
  Restart();
}

void RuleChooser::Obey(PlacementRule rule) {
  const bool known = std::any_of(candidates_.begin(), candidates_.end(),
                                 [rule](const Candidate& candidate) { return candidate.rule == rule; });
  if (!known) return;
  obeys_ = true;
  switches_ += rule == rule_ ? 0 : 1;
  rule_ = rule;
}

void RuleChooser::Restart() {
  groups_.clear();
  watched_groups_.clear();
  sums_.assign(candidates_.size(), 0);
  watched_sums_.assign(watched_.size(), 0);
  counted_ = owed_ = seen_requests_ = 0;
  steps_ = seen_steps_ = 0;
}

void RuleChooser::Step(Lookahead& lookahead, const EndedRequests& ended, absl::Span<const WorkerView> workers,
                       double placed, double mean_age) {
  if (!chooses()) return;
  if (workers.size() != workers_) {
    workers_ = workers.size();
    Restart();
  }
  ++seen_steps_;
  seen_requests_ += placed;
  empty_.assign(workers.begin(),
                workers.begin() + static_cast<int64_t>(std::min(workers.size(), kMostWorkers)));
  for (WorkerView& view : empty_) {
    view.free_slots += view.active;
    view.free_kv_tokens = view.total_kv_tokens = WorkerView().total_kv_tokens;
    view.load_tokens = view.active = 0;
    view.accepts_new = true;
  }
  const double share = static_cast<double>(empty_.size()) / static_cast<double>(workers.size());
  owed_ += share * placed;
  if (groups_.empty()) {
    owed_ = 0;
    if (ended.size() < kLeastEnded) return;
    BeginReplay(ended);
  }
  ReplayStep(lookahead, ended, mean_age);
  if (steps_ % kChooseEvery == 0) Choose();
}

void RuleChooser::BeginReplay(const EndedRequests& ended) {
  for (const Candidate& candidate : candidates_) {
    groups_.emplace_back(std::make_unique<BfIoAutoPolicy>(), candidate.rule, empty_);
  }
  watched_groups_.emplace_back(Fcfs(), PlacementRule(), empty_);
  watched_groups_.emplace_back(LeastRequests(), PlacementRule(), empty_);
  int64_t longest = 0;
  for (size_t i = 0; i < ended.size(); ++i) longest = std::max(longest, ended[i].output_tokens);
  const double rate = seen_requests_ / static_cast<double>(seen_steps_) * static_cast<double>(empty_.size()) /
                      static_cast<double>(workers_);
  double owed = 0;
  for (int64_t age = std::min(longest, kOldest); age > 0; --age) {
    for (owed += rate; owed >= 1; owed -= 1) {
      const EndedRequest& request = Draw(ended);
      if (request.output_tokens <= age) continue;
      for (ReplayedGroup& group : groups_) group.Begin(request, age);
      for (ReplayedGroup& group : watched_groups_) group.Begin(request, age);
    }
  }
}

void RuleChooser::ReplayStep(Lookahead& lookahead, const EndedRequests& ended, double mean_age) {
  ReplayedStep& step = latest_[static_cast<size_t>(steps_ % kWatchEvery)];
  step.arrivals.clear();
  for (; owed_ >= 1; owed_ -= 1) step.arrivals.push_back(Draw(ended));
  stay_ = std::max({1.0, ended.mean_stay(), 2 * mean_age});
  step.counts = static_cast<double>(++steps_) > kSettleStays * stay_;
  step.keep = 1 - 1 / (1 + kMemoryStays * stay_);
  if (step.counts) counted_ = step.keep * counted_ + 1;
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].SetWorkers(empty_);
    const double time = groups_[i].Step(lookahead, step.arrivals);
    if (step.counts) sums_[i] = step.keep * sums_[i] + time;
  }
  if (steps_ % kWatchEvery == 0) ReplayWatched(lookahead);
}

void RuleChooser::ReplayWatched(Lookahead& lookahead) {
  for (size_t i = 0; i < watched_groups_.size(); ++i) {
    watched_groups_[i].SetWorkers(empty_);
    for (const ReplayedStep& step : latest_) {
      const double time = watched_groups_[i].Step(lookahead, step.arrivals);
      if (step.counts) watched_sums_[i] = step.keep * watched_sums_[i] + time;
    }
  }
}

void RuleChooser::Choose() {
  if (counted_ == 0 || static_cast<double>(steps_) < (kSettleStays + kLeastStays) * stay_) return;
  for (size_t i = 0; i < candidates_.size(); ++i) candidates_[i].time = sums_[i] / counted_;
  for (size_t i = 0; i < watched_.size(); ++i) watched_[i].time = watched_sums_[i] / counted_;
  const auto by_time = [](const Candidate& a, const Candidate& b) { return a.time < b.time; };
  const Candidate& best = *std::min_element(candidates_.begin(), candidates_.end(), by_time);
  const Candidate& now =
      *std::find_if(candidates_.begin(), candidates_.end(),
                    [this](const Candidate& candidate) { return candidate.rule == rule_; });
  if (best.time >= (1 - kHysteresis) * now.time) return;
  rule_ = best.rule;
  ++switches_;
}

double RuleChooser::TimeOf(PlacementRule rule) const {
  for (const Candidate& candidate : candidates_) {
    if (candidate.rule == rule) return candidate.time;
  }
  return 0;
}

std::string DescribeChoice(const RuleChooser& chooser, PlacementRule before) {
  const std::string rule(PlacementRuleName(chooser.rule()));
  if (!chooser.measured()) return rule;
  return absl::StrFormat("%s: its steps are %.1f %% shorter than those of %s over the last %d steps", rule,
                         100 * (1 - 1 / chooser.StepRatio(before)), PlacementRuleName(before),
                         chooser.counted_steps());
}

ReplayedGroup::ReplayedGroup(std::unique_ptr<Policy> policy, PlacementRule rule,
                             absl::Span<const WorkerView> workers)
    : policy_(std::move(policy)), rule_(rule) {
  workers_.resize(workers.size());
  for (size_t g = 0; g < workers.size(); ++g) {
    workers_[g].view = workers[g];
    workers_[g].view.load_tokens = workers_[g].view.active = 0;
    workers_[g].next_end = kNever;
  }
}

void ReplayedGroup::SetWorkers(absl::Span<const WorkerView> workers) {
  for (size_t g = 0; g < workers_.size(); ++g) {
    WorkerView& view = workers_[g].view;
    view.time_per_token = workers[g].time_per_token;
    view.time_offset = workers[g].time_offset;
  }
}

void ReplayedGroup::Put(Worker& worker, const EndedRequest& request, int64_t first_step) {
  worker.residents.push_back(request.resident);
  Resident& resident = worker.residents.back();
  resident.id = ++last_id_;
  resident.first_step = first_step;
  resident.inflight = resident.dropped = false;
  worker.last_steps.push_back(first_step + request.output_tokens - 1);
  worker.next_end = std::min(worker.next_end, worker.last_steps.back());
  worker.view.load_tokens += resident.prefill_tokens + step_ - first_step;
  ++worker.view.active;
  --worker.view.free_slots;
  ++worker.version;
}

void ReplayedGroup::Begin(const EndedRequest& request, int64_t age) {
  Worker* least = nullptr;
  for (Worker& worker : workers_) {
    if (worker.view.free_slots <= 0) continue;
    if (least == nullptr || worker.view.Time() < least->view.Time()) least = &worker;
  }
  if (least != nullptr) Put(*least, request, step_ - age);
}

double ReplayedGroup::Step(Lookahead& lookahead, absl::Span<const EndedRequest> arrivals) {
  for (const EndedRequest& request : arrivals) {
    if (waiting_.size() < kMostWaiting) waiting_.push_back(request);
  }
  if (!waiting_.empty()) Place(lookahead);
  double slowest = 0;
  for (const Worker& worker : workers_) slowest = std::max(slowest, worker.view.Time());
  for (Worker& worker : workers_) EndStep(worker);
  ++step_;
  return slowest;
}

void ReplayedGroup::Place(Lookahead& lookahead) {
  views_.clear();
  int64_t free = 0;
  for (const Worker& worker : workers_) {
    views_.push_back(worker.view);
    free += worker.view.free_slots;
  }
  shown_.clear();
  for (const EndedRequest& request : waiting_) {
    if (static_cast<int64_t>(shown_.size()) == free) break;
    WaitingView& view = shown_.emplace_back();
    view.id = ++last_id_;
    view.prefill_tokens = request.resident.prefill_tokens;
    view.enqueued_step = step_;
    view.predicted_output_tokens = request.resident.expected_tokens;
    view.max_new_tokens = request.resident.max_new_tokens;
    view.generated_tokens = request.resident.generated_tokens;
    view.tenant = request.resident.tenant;
  }
  if (shown_.empty()) return;
  Snapshot snapshot;
  snapshot.step = step_;
  snapshot.workers = views_;
  snapshot.waiting = shown_;
  snapshot.rule = rule_;
  if (LooksAhead(rule_)) {
    far_.Begin(static_cast<int32_t>(workers_.size()));
    for (const Worker& worker : workers_) {
      far_.AddWorker(lookahead, {worker.residents, {step_ - 1, step_}, worker.version, 1});
    }
    far_.AddWaiting(lookahead, shown_);
    snapshot.far = far_.View();
  }
  decision_.Clear();
  policy_->Decide(snapshot, decision_);
  for (const Assignment& assignment : decision_.assignments) {
    Put(workers_[static_cast<size_t>(assignment.worker)],
        waiting_[static_cast<size_t>(assignment.waiting_index)], step_);
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<int64_t>(shown_.size()));
}

void ReplayedGroup::EndStep(Worker& worker) {
  if (worker.next_end <= step_) {
    worker.next_end = kNever;
    for (size_t i = 0; i < worker.residents.size();) {
      if (worker.last_steps[i] > step_) {
        worker.next_end = std::min(worker.next_end, worker.last_steps[i++]);
        continue;
      }
      const Resident& resident = worker.residents[i];
      worker.view.load_tokens -= resident.prefill_tokens + step_ - resident.first_step;
      --worker.view.active;
      ++worker.view.free_slots;
      ++worker.version;
      worker.residents[i] = worker.residents.back();
      worker.last_steps[i] = worker.last_steps.back();
      worker.residents.pop_back();
      worker.last_steps.pop_back();
    }
  }
  worker.view.load_tokens += worker.view.active;
}

}  // namespace bfio::core
