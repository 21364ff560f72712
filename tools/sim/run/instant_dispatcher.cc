#include "tools/sim/run/instant_dispatcher.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::sim {

InstantDispatcher::InstantDispatcher(std::unique_ptr<core::Policy> policy, int32_t report_delay,
                                     std::vector<core::WorkerSpec> workers, ServeGroup* group,
                                     const std::vector<ServeRequest>* requests)
    : policy_(std::move(policy)),
      workers_(workers.size()),
      group_(group),
      requests_(requests),
      report_delay_(report_delay) {
  for (size_t g = 0; g < workers.size(); ++g) workers_[g].spec = workers[g];
}

void InstantDispatcher::Arrived(ServeRequestIndex index) {
  const ServeRequest& request = (*requests_)[index];
  core::WaitingView view;
  view.id = request.id;
  view.prefill_tokens = request.prompt;
  view.max_new_tokens = request.max_new_tokens;
  view.kv_reserve_tokens = request.prompt + request.max_new_tokens - 1;
  fresh_.push_back(view);
  fresh_indices_.push_back(index);
}

absl::Status InstantDispatcher::Decide(double) {
  if (fresh_.empty()) return absl::OkStatus();
  const int32_t count = static_cast<int32_t>(fresh_.size());
  int64_t most_kv = 0;
  for (core::WaitingView& view : fresh_) {
    view.enqueued_step = step_;
    most_kv += view.kv_reserve_tokens;
  }
  views_.clear();
  for (const Worker& worker : workers_) {
    core::WorkerView& view = views_.emplace_back();
    view.active = worker.known_active + worker.unseen;
    view.load_tokens =
        worker.known_load + worker.known_active * (step_ - reported_step_ - 1) + worker.unseen_tokens;
    view.free_slots = count;
    view.free_kv_tokens = view.total_kv_tokens = most_kv;
    view.time_per_token = worker.spec.time_per_token;
    view.time_offset = worker.spec.time_offset;
  }
  core::Snapshot snapshot;
  snapshot.step = step_;
  snapshot.workers = views_;
  snapshot.waiting = fresh_;
  snapshot.pool_size = count;
  decision_.Clear();
  policy_->Decide(snapshot, decision_);
  if (static_cast<int32_t>(decision_.assignments.size()) != count) {
    return absl::InternalError(absl::StrCat("step ", step_, ": the policy placed ",
                                            decision_.assignments.size(), " of ", count,
                                            " requests although all fit"));
  }
  // Queues are in order of arrival.
  std::sort(decision_.assignments.begin(), decision_.assignments.end(),
            [](const auto& a, const auto& b) { return a.waiting_index < b.waiting_index; });
  for (const core::Assignment& assignment : decision_.assignments) {
    const core::WaitingView& view = fresh_[static_cast<size_t>(assignment.waiting_index)];
    Worker& worker = workers_[static_cast<size_t>(assignment.worker)];
    worker.queue.push_back({view.id, fresh_indices_[static_cast<size_t>(assignment.waiting_index)],
                            view.prefill_tokens, view.kv_reserve_tokens});
    worker.unseen_tokens += view.prefill_tokens;
    ++worker.unseen;
  }
  queued_ += count;
  fresh_.clear();
  fresh_indices_.clear();
  return absl::OkStatus();
}

bool InstantDispatcher::Order(int32_t stepper, std::vector<RankOrder>& orders) {
  for (size_t g = 0; g < workers_.size(); ++g) StartQueued(static_cast<core::WorkerIndex>(g));
  FillBudget(*group_, stepper, std::numeric_limits<int64_t>::max(), orders);
  return group_->active() > 0 || queued_ > 0;
}

void InstantDispatcher::StartQueued(core::WorkerIndex g) {
  Worker& worker = workers_[static_cast<size_t>(g)];
  while (!worker.queue.empty() && worker.active < worker.spec.slots &&
         worker.reserved_kv + worker.queue.front().kv_reserve_tokens <= worker.spec.kv_tokens) {
    Sent sent = worker.queue.front();
    worker.queue.pop_front();
    --queued_;
    ++worker.active;
    worker.reserved_kv += sent.kv_reserve_tokens;
    sent.first_step = step_;
    running_.emplace(sent.id, sent);
    unseen_starts_.emplace_back(g, sent);
    group_->Bind(sent.index, g);
  }
}

void InstantDispatcher::Stepped(int32_t, const ServeStep& step, double) {
  GroupReport report{step_++, step.resident_tokens,
                     std::vector<std::vector<core::RequestId>>(workers_.size())};
  for (const auto& [index, g] : step.ended) {
    const core::RequestId id = (*requests_)[index].id;
    --workers_[g].active;
    workers_[g].reserved_kv -= running_.at(id).kv_reserve_tokens;
    report.finished[g].push_back(id);
  }
  reports_.push_back(std::move(report));
  for (; std::ssize(reports_) > report_delay_; reports_.pop_front()) Learn(reports_.front());
}

void InstantDispatcher::Learn(const GroupReport& report) {
  reported_step_ = report.step;
  while (!unseen_starts_.empty() && unseen_starts_.front().second.first_step <= report.step) {
    const auto& [g, sent] = unseen_starts_.front();
    workers_[g].unseen_tokens -= sent.prefill_tokens;
    --workers_[g].unseen;
    ++workers_[g].known_active;
    unseen_starts_.pop_front();
  }
  for (size_t g = 0; g < workers_.size(); ++g) {
    Worker& worker = workers_[g];
    worker.known_load = report.loads[g];
    for (core::RequestId id : report.finished[g]) {
      const auto it = running_.find(id);
      worker.known_load -= it->second.prefill_tokens + report.step - it->second.first_step;
      --worker.known_active;
      running_.erase(it);
    }
    // Each continuing request has grown by one token. With another drift the next report corrects the load.
    worker.known_load = std::max<int64_t>(0, worker.known_load + worker.known_active);
  }
}

}  // namespace bfio::sim
