#include "router/core/choice/replayed_group.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace bfio::core {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// Maximum number of requests that wait for a slot; further ones are dropped.
constexpr size_t kMostWaiting = 4096;

}  // namespace

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
    view.prefill_weight = workers[g].prefill_weight;
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
  if (rule_ == PlacementRule::kHorizon) {
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
