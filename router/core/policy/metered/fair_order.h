// The order of waiting requests in which every tenant gets the same service.
//
// Purpose: for a rule that takes the first requests where slots are short. The least served tenant's oldest
// request comes next. It is charged its prompt once and a mean output twice: virtual token counters (Sheng et
// al., "Fairness in serving large language models", OSDI 2024), as in scheduler/tenant_service.h. With one
// tenant the result is the order of the pool.
//
// Pure; any thread. Units: tokens. Cost: O(waiting log tenants).
#ifndef BFIO_ROUTER_CORE_POLICY_METERED_FAIR_ORDER_H_
#define BFIO_ROUTER_CORE_POLICY_METERED_FAIR_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

// Sets `order` to all indices of `waiting`. REQUIRES: `waiting` is in pool order and of one class of
// priority.
void FairOrder(absl::Span<const WaitingView> waiting, double mean_output_tokens, std::vector<int32_t>& order);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_METERED_FAIR_ORDER_H_
