#include "router/core/policy/fair_order.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <queue>

#include "router/core/prefix/prefix_view.h"

namespace bfio::core {

void FairOrder(absl::Span<const WaitingView> waiting, double mean_output_tokens,
               absl::Span<const double> urgency, std::vector<int32_t>& order) {
  // Tenants in the order of their oldest requests, each with its requests in order.
  std::map<uint32_t, size_t> index;
  std::vector<std::vector<int32_t>> requests;
  for (size_t i = 0; i < waiting.size(); ++i) {
    const auto [it, added] = index.try_emplace(waiting[i].tenant, requests.size());
    if (added) requests.emplace_back();
    requests[it->second].push_back(static_cast<int32_t>(i));
  }
  for (std::vector<int32_t>& of_tenant : requests) {
    if (!urgency.empty())
      std::ranges::stable_sort(of_tenant, std::greater(),
                               [&](int32_t i) { return urgency[static_cast<size_t>(i)]; });
  }
  // Sorted by service; among equals the tenant whose request is older comes first.
  using Next = std::pair<double, size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  for (size_t t = 0; t < requests.size(); ++t)
    next.emplace(waiting[static_cast<size_t>(requests[t].front())].tenant_excess_tokens, t);
  std::vector<size_t> taken(requests.size(), 0);
  order.clear();
  while (!next.empty()) {
    const auto [served, t] = next.top();
    next.pop();
    order.push_back(requests[t][taken[t]]);
    const WaitingView& request = waiting[static_cast<size_t>(order.back())];
    const double charge =
        static_cast<double>(request.prefill_tokens - request.computed_tokens) + 2 * mean_output_tokens;
    if (++taken[t] < requests[t].size()) next.emplace(served + charge, t);
  }
}

void FairPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  const absl::Span<const WaitingView> pool = snapshot.waiting;
  if (std::all_of(pool.begin(), pool.end(),
                  [&](const WaitingView& request) { return request.tenant == pool.front().tenant; }))
    return oldest_first_->Decide(snapshot, decision);
  const double output = snapshot.prefixes == nullptr ? 0 : snapshot.prefixes->output_tokens;
  waiting_.clear();
  from_.clear();
  for (size_t first = 0, end = 0; first < pool.size(); first = end) {
    while (end < pool.size() && pool[end].priority == pool[first].priority) ++end;
    FairOrder(pool.subspan(first, end - first), output, {}, order_);
    for (const int32_t i : order_) from_.push_back(static_cast<int32_t>(first) + i);
  }
  for (const int32_t i : from_) waiting_.push_back(pool[static_cast<size_t>(i)]);
  Snapshot fair = snapshot;
  fair.waiting = waiting_;
  oldest_first_->Decide(fair, decision);
  for (Assignment& assignment : decision.assignments)
    assignment.waiting_index = from_[static_cast<size_t>(assignment.waiting_index)];
}

}  // namespace bfio::core
