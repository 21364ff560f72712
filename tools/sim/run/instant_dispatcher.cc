#include "tools/sim/run/instant_dispatcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace bfio::sim {

absl::StatusOr<std::unique_ptr<Dispatcher>> InstantDispatcher::Create(const SimOptions& options,
                                                                      std::vector<core::WorkerSpec> workers) {
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<core::Policy> policy, MakePolicy(options));
  return std::unique_ptr<Dispatcher>(
      new InstantDispatcher(std::move(policy), options.report_delay, std::move(workers)));
}

InstantDispatcher::InstantDispatcher(std::unique_ptr<core::Policy> policy, int32_t report_delay,
                                     std::vector<core::WorkerSpec> workers)
    : policy_(std::move(policy)), workers_(workers.size()), delay_(report_delay) {
  for (size_t g = 0; g < workers.size(); ++g) workers_[g].spec = workers[g];
}

absl::Status InstantDispatcher::Enqueue(const core::RequestSpec& request) {
  core::WaitingView view;
  view.id = request.id;
  view.prefill_tokens = request.prefill_tokens;
  view.kv_reserve_tokens = request.kv_reserve_tokens();
  view.max_new_tokens = request.max_new_tokens;
  view.priority = request.priority;
  fresh_.push_back(view);
  return absl::OkStatus();
}

absl::Status InstantDispatcher::Start(int64_t step, std::vector<Started>& started) {
  if (!fresh_.empty()) {
    BFIO_RETURN_IF_ERROR(Dispatch(step));
  }
  for (size_t g = 0; g < workers_.size(); ++g) StartQueued(static_cast<core::WorkerIndex>(g), step, started);
  return absl::OkStatus();
}

absl::Status InstantDispatcher::Dispatch(int64_t step) {
  const int32_t count = static_cast<int32_t>(fresh_.size());
  int64_t most_kv = 0;
  for (core::WaitingView& view : fresh_) {
    view.enqueued_step = step;
    most_kv += view.kv_reserve_tokens;
  }
  views_.clear();
  for (const Worker& worker : workers_) {
    core::WorkerView& view = views_.emplace_back();
    view.active = worker.known_active + worker.unseen;
    view.load_tokens =
        worker.known_load + worker.known_active * (step - reported_step_ - 1) + worker.unseen_tokens;
    view.free_slots = count;
    view.free_kv_tokens = view.total_kv_tokens = most_kv;
    view.time_per_token = worker.spec.time_per_token;
    view.time_offset = worker.spec.time_offset;
  }
  core::Snapshot snapshot;
  snapshot.step = step;
  snapshot.workers = views_;
  snapshot.waiting = fresh_;
  snapshot.pool_size = count;
  decision_.Clear();
  policy_->Decide(snapshot, decision_);
  if (static_cast<int32_t>(decision_.assignments.size()) != count) {
    return absl::InternalError(absl::StrCat("step ", step, ": the policy placed ",
                                            decision_.assignments.size(), " of ", count,
                                            " requests although all fit"));
  }
  // Queues are in order of arrival.
  std::sort(decision_.assignments.begin(), decision_.assignments.end(),
            [](const auto& a, const auto& b) { return a.waiting_index < b.waiting_index; });
  for (const core::Assignment& assignment : decision_.assignments) {
    const core::WaitingView& view = fresh_[static_cast<size_t>(assignment.waiting_index)];
    Worker& worker = workers_[static_cast<size_t>(assignment.worker)];
    worker.queue.push_back({view.id, view.prefill_tokens, view.kv_reserve_tokens, 0});
    worker.unseen_tokens += view.prefill_tokens;
    ++worker.unseen;
  }
  queued_ += count;
  fresh_.clear();
  return absl::OkStatus();
}

void InstantDispatcher::StartQueued(core::WorkerIndex g, int64_t step, std::vector<Started>& started) {
  Worker& worker = workers_[static_cast<size_t>(g)];
  while (!worker.queue.empty() && worker.active < worker.spec.slots &&
         worker.reserved_kv + worker.queue.front().kv_reserve_tokens <= worker.spec.kv_tokens) {
    Sent sent = worker.queue.front();
    worker.queue.pop_front();
    --queued_;
    ++worker.active;
    worker.reserved_kv += sent.kv_reserve_tokens;
    sent.first_step = step;
    running_.emplace(sent.id, sent);
    unseen_starts_.emplace_back(g, sent);
    started.push_back({sent.id, g});
  }
}

absl::Status InstantDispatcher::OnReport(GroupReport report) {
  for (size_t g = 0; g < workers_.size(); ++g) {
    for (core::RequestId id : report.finished[g]) {
      const auto it = running_.find(id);
      if (it == running_.end()) return absl::InternalError(absl::StrCat("unknown request ", id, " finished"));
      --workers_[g].active;
      workers_[g].reserved_kv -= it->second.kv_reserve_tokens;
    }
  }
  delay_.Push(std::move(report));
  while (const GroupReport* due = delay_.Front()) {
    Learn(*due);
    delay_.Pop();
  }
  return absl::OkStatus();
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
