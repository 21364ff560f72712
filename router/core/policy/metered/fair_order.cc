#include "router/core/policy/metered/fair_order.h"

#include <cstddef>
#include <functional>
#include <map>
#include <queue>
#include <utility>

namespace bfio::core {

void FairOrder(absl::Span<const WaitingView> waiting, double mean_output_tokens,
               std::vector<int32_t>& order) {
  // Tenants in the order of their oldest requests, each with its requests in order.
  std::map<uint32_t, size_t> index;
  std::vector<std::vector<int32_t>> requests;
  for (size_t i = 0; i < waiting.size(); ++i) {
    const auto [it, added] = index.try_emplace(waiting[i].tenant, requests.size());
    if (added) requests.emplace_back();
    requests[it->second].push_back(static_cast<int32_t>(i));
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

}  // namespace bfio::core
