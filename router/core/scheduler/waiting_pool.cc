#include "router/core/scheduler/waiting_pool.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

namespace bfio::core {
namespace {

WaitingView ViewOf(const RequestSpec& request, int64_t enqueued_step) {
  WaitingView view;
  view.id = request.id;
  view.prefill_tokens = request.prefill_tokens;
  view.computed_tokens = request.computed_tokens;
  // The worker that refused the request may hold its prefix, which must not attract the request again.
  if (request.refusals == 0) view.prefix = request.prefix_blocks();
  view.kv_reserve_tokens = request.kv_reserve_tokens();
  view.runs_alone = request.steps_alone > 0;
  view.enqueued_step = enqueued_step;
  view.seniority = request.seniority;
  view.deadline_us = request.deadline_us;
  view.ttft_objective_s = request.ttft_objective_s;
  view.priority = request.priority;
  view.predicted_output_tokens = request.predicted_output_tokens;
  view.max_new_tokens = request.max_new_tokens;
  view.generated_tokens = request.generated_tokens;
  view.tenant = request.tenant;
  view.reserves_kv = request.reserves_kv();
  if (request.held_to) view.held_to = request.held_to->worker;
  return view;
}

}  // namespace

void WaitingPool::Enter(const RequestSpec& request) {
  assert(!Contains(request.id));
  specs_.emplace(request.id, request);
  tokens_to_compute_ += request.tokens_to_compute();
  needing_ += request.needs != 0 ? 1 : 0;
  longest_ = std::max(longest_, request.kv_reserve_tokens());
  if (request.model == 0) return;
  ++bound_;
  ++bound_to_[request.model];
}

void WaitingPool::Leave(RequestId id) {
  const auto it = specs_.find(id);
  tokens_to_compute_ -= it->second.tokens_to_compute();
  needing_ -= it->second.needs != 0 ? 1 : 0;
  if (const uint32_t model = it->second.model; model != 0) {
    --bound_;
    if (--bound_to_[model] == 0) bound_to_.erase(model);
  }
  specs_.erase(it);
}

template <class Before>
void WaitingPool::Insert(const RequestSpec& request, int64_t enqueued_step, Before before) {
  Enter(request);
  const WaitingView view = ViewOf(request, enqueued_step);
  auto at = views_.end();
  // Nearly always the back.
  while (at != views_.begin() && before(view, *(at - 1))) --at;
  const auto index = static_cast<size_t>(at - views_.begin());
  for (Hidden& hidden : hidden_) hidden.before += hidden.before > index ? 1 : 0;
  views_.insert(at, view);
}

void WaitingPool::Add(const RequestSpec& request, int64_t enqueued_step) {
  Insert(request, enqueued_step, Precedes);
}

void WaitingPool::AddFront(const RequestSpec& request, int64_t enqueued_step) {
  Insert(request, enqueued_step,
         [](const WaitingView& a, const WaitingView& b) { return a.priority >= b.priority; });
}

void WaitingPool::Return(const RequestSpec& request, int64_t enqueued_step) {
  Insert(request, enqueued_step, [](const WaitingView& a, const WaitingView& b) { return !Precedes(b, a); });
}

bool WaitingPool::Remove(RequestId id) {
  assert(hidden_.empty());
  if (!Contains(id)) return false;
  Leave(id);
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
    Leave(views_[index].id);
  }
  size_t taken = 0, at = 0;
  for (Hidden& hidden : hidden_) {
    while (at < hidden.before) taken += gone_[at++] != 0 ? 1 : 0;
    hidden.before -= taken;
  }
  size_t kept = first;
  for (size_t i = first; i < views_.size(); ++i) {
    if (!gone_[i]) views_[kept++] = views_[i];
  }
  views_.resize(kept);
}

void WaitingPool::Hide(const GroupAbility& ability) {
  assert(hidden_.empty());
  const auto own = bound_to_.find(ability.model);
  const int64_t others = bound_ - (own == bound_to_.end() ? 0 : own->second);
  if ((ability.model == 0 || others == 0) && (ability.lacks == 0 || needing_ == 0) &&
      longest_ < ability.max_sequence_tokens) {
    return;
  }
  longest_ = 0;
  size_t kept = 0;
  for (const WaitingView& view : views_) {
    const RequestSpec& request = specs_.at(view.id);
    longest_ = std::max(longest_, request.kv_reserve_tokens());
    if (ability.Takes(request)) {
      views_[kept++] = view;
    } else {
      hidden_.push_back({view, kept});
    }
  }
  views_.resize(kept);
}

void WaitingPool::ShowAll() {
  if (hidden_.empty()) return;
  std::vector<WaitingView> all;
  all.reserve(views_.size() + hidden_.size());
  size_t at = 0;
  for (const Hidden& hidden : hidden_) {
    while (at < hidden.before) all.push_back(views_[at++]);
    all.push_back(hidden.view);
  }
  all.insert(all.end(), views_.begin() + static_cast<std::ptrdiff_t>(at), views_.end());
  views_ = std::move(all);
  hidden_.clear();
}

}  // namespace bfio::core
