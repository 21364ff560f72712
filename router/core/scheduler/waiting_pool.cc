#include "router/core/scheduler/waiting_pool.h"

#include <algorithm>
#include <cassert>

namespace bfio::core {
namespace {

WaitingView ViewOf(const RequestSpec& request, int64_t enqueued_step) {
  WaitingView view;
  view.id = request.id;
  view.prefill_tokens = request.prefill_tokens;
  view.kv_reserve_tokens = request.kv_reserve_tokens();
  view.runs_alone = request.runs_alone;
  view.enqueued_step = enqueued_step;
  view.seniority = request.seniority;
  view.deadline_us = request.deadline_us;
  view.priority = request.priority;
  view.predicted_output_tokens = request.predicted_output_tokens;
  view.max_new_tokens = request.max_new_tokens;
  view.generated_tokens = request.generated_tokens;
  view.tenant = request.tenant;
  view.reserves_kv = request.reserves_kv();
  return view;
}

}  // namespace

void WaitingPool::Add(const RequestSpec& request, int64_t enqueued_step) {
  assert(!Contains(request.id));
  specs_.emplace(request.id, request);
  const WaitingView view = ViewOf(request, enqueued_step);
  auto at = views_.end();
  // Nearly always the back: only a more urgent or more senior request walks past others.
  const auto overtakes = [&](const WaitingView& other) {
    if (other.priority != view.priority) return other.priority < view.priority;
    if (other.senior_step() != view.senior_step()) return other.senior_step() > view.senior_step();
    return other.deadline_us > view.deadline_us;
  };
  while (at != views_.begin() && overtakes(*(at - 1))) --at;
  views_.insert(at, view);
}

void WaitingPool::Append(const RequestSpec& request, int64_t enqueued_step, bool passed_over) {
  assert(!Contains(request.id));
  specs_.emplace(request.id, request);
  views_.push_back(ViewOf(request, enqueued_step));
  views_.back().passed_over = passed_over;
}

void WaitingPool::AddFront(const RequestSpec& request, int64_t enqueued_step) {
  assert(!Contains(request.id));
  specs_.emplace(request.id, request);
  const auto at = std::find_if(views_.begin(), views_.end(),
                               [&](const WaitingView& v) { return v.priority <= request.priority; });
  views_.insert(at, ViewOf(request, enqueued_step));
}

void WaitingPool::Return(const RequestSpec& request, int64_t enqueued_step) {
  assert(!Contains(request.id));
  specs_.emplace(request.id, request);
  const WaitingView view = ViewOf(request, enqueued_step);
  auto at = views_.end();
  const auto yields = [&](const WaitingView& other) {
    if (other.priority != view.priority) return other.priority < view.priority;
    if (other.senior_step() != view.senior_step()) return other.senior_step() > view.senior_step();
    return other.deadline_us >= view.deadline_us;
  };
  while (at != views_.begin() && yields(*(at - 1))) --at;
  views_.insert(at, view);
}

bool WaitingPool::Remove(RequestId id) {
  if (specs_.erase(id) == 0) return false;
  views_.erase(std::find_if(views_.begin(), views_.end(), [&](const WaitingView& v) { return v.id == id; }));
  return true;
}

void WaitingPool::RemoveMany(absl::Span<const Assignment> chosen) {
  if (chosen.empty()) return;
  gone_.assign(views_.size(), 0);
  size_t first = views_.size();
  for (const Assignment& a : chosen) {
    const size_t index = static_cast<size_t>(a.waiting_index);
    assert(index < views_.size() && !gone_[index]);
    gone_[index] = 1;
    first = std::min(first, index);
    specs_.erase(views_[index].id);
  }
  size_t kept = first;
  for (size_t i = first; i < views_.size(); ++i) {
    if (!gone_[i]) views_[kept++] = views_[i];
  }
  views_.resize(kept);
}

}  // namespace bfio::core
