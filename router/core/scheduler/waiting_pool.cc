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
  if (leaving_.contains(request.id)) Settle();
  specs_.emplace(request.id, request);
  tokens_to_compute_ += request.tokens_to_compute();
  CountNeeds(request, 1);
  longest_ = std::max(longest_, request.kv_reserve_tokens());
  if (request.model == 0) return;
  ++bound_;
  ++bound_to_[request.model];
}

void WaitingPool::Leave(RequestId id) {
  const auto it = specs_.find(id);
  tokens_to_compute_ -= it->second.tokens_to_compute();
  CountNeeds(it->second, -1);
  if (const uint32_t model = it->second.model; model != 0) {
    --bound_;
    if (--bound_to_[model] == 0) bound_to_.erase(model);
  }
  specs_.erase(it);
}

void WaitingPool::CountNeeds(const RequestSpec& request, int64_t sign) {
  for (size_t bit = 0; bit < needing_.size(); ++bit) {
    if ((request.needs >> bit & 1) == 0) continue;
    needing_[bit].requests += sign;
    needing_[bit].tokens += sign * request.prefill_tokens;
  }
}

WaitingPool::Needing WaitingPool::needing(uint32_t needs) const {
  Needing sum;
  for (size_t bit = 0; bit < needing_.size(); ++bit) {
    if ((needs >> bit & 1) == 0) continue;
    sum.requests += needing_[bit].requests;
    sum.tokens += needing_[bit].tokens;
  }
  return sum;
}

void WaitingPool::Insert(const RequestSpec& request, int64_t enqueued_step, Entry entry) {
  Enter(request);
  if (entry != entry_) Settle();
  entry_ = entry;
  const WaitingView view = ViewOf(request, enqueued_step);
  // Nearly always the back.
  const bool last = entering_.empty() && (views_.empty() || !Before(entry, view, views_.back()));
  (last ? views_ : entering_).push_back(view);
}

void WaitingPool::Settle() const {
  if (!leaving_.empty()) {
    moved_ += std::ssize(views_) + std::ssize(entering_);
    for (std::vector<WaitingView>* const of : {&views_, &entering_})
      std::erase_if(*of, [this](const WaitingView& view) { return leaving_.contains(view.id); });
    leaving_.clear();
  }
  if (entering_.empty()) return;
  // Of equals, the last one to come goes first.
  if (entry_ != Entry::kBehind) std::reverse(entering_.begin(), entering_.end());
  std::stable_sort(entering_.begin(), entering_.end(),
                   [this](const WaitingView& a, const WaitingView& b) { return Less(entry_, a, b); });
  size_t from = views_.size(), to = from + entering_.size(), hidden = hidden_.size();
  views_.resize(to);
  for (size_t left = entering_.size(); left > 0;) {
    if (from > 0 && Before(entry_, entering_[left - 1], views_[from - 1])) {
      views_[--to] = views_[--from];
      ++moved_;
      continue;
    }
    for (; hidden > 0 && hidden_[hidden - 1].before > from; --hidden) hidden_[hidden - 1].before += left;
    views_[--to] = entering_[--left];
  }
  entering_.clear();
}

void WaitingPool::Add(const RequestSpec& request, int64_t enqueued_step) {
  Insert(request, enqueued_step, Entry::kBehind);
}

void WaitingPool::AddFront(const RequestSpec& request, int64_t enqueued_step) {
  Insert(request, enqueued_step, Entry::kFront);
}

void WaitingPool::Return(const RequestSpec& request, int64_t enqueued_step) {
  Insert(request, enqueued_step, Entry::kAhead);
}

bool WaitingPool::Remove(RequestId id) {
  assert(hidden_.empty());
  if (!Contains(id)) return false;
  Leave(id);
  leaving_.insert(id);
  return true;
}

void WaitingPool::RemoveMany(absl::Span<const Assignment> chosen) {
  if (chosen.empty()) return;
  Settle();
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
  Settle();
  const auto own = bound_to_.find(ability.model);
  const int64_t others = bound_ - (own == bound_to_.end() ? 0 : own->second);
  if ((ability.model == 0 || others == 0) && needing(ability.lacks).requests == 0 &&
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
  Settle();
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
