// The order of waiting requests in which every tenant gets the same service, for rules that take the first
// requests where slots are short: virtual token counters (Sheng et al., "Fairness in serving large language
// models", OSDI 2024), as in scheduler/tenant_service.h. Threads: as Policy.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

// How long a request lets others go first, in units of the 99th percentile of waits under first come, first
// served. Requests with a popular prefix wait longer than others. With 1.15 they go to workers without the
// prefix so often that all requests wait twice as long.
inline constexpr double kLongestWait = 2;

// Sets `order` to all indices of `waiting`. `urgency`, by index: which of a tenant's requests come first;
// empty: the oldest. REQUIRES: `waiting` is in pool order and of one class of priority.
void FairOrder(absl::Span<const WaitingView> waiting, double mean_output_tokens,
               absl::Span<const double> urgency, std::vector<int32_t>& order);

// A policy that takes the oldest first, which it gets in fair order of their tenants.
class FairPolicy final : public Policy {
 public:
  explicit FairPolicy(std::unique_ptr<Policy> oldest_first) : oldest_first_(std::move(oldest_first)) {}

  absl::string_view name() const override { return oldest_first_->name(); }
  bool uses_prefixes() const override { return oldest_first_->uses_prefixes(); }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  const std::unique_ptr<Policy> oldest_first_;
  // Scratch: the requests in fair order, and where each is in the pool.
  std::vector<WaitingView> waiting_;
  std::vector<int32_t> from_, order_;
};

}  // namespace bfio::core
