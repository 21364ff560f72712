// The tenants of a router: their numbers, limits and totals. One place and one bound for all names that
// clients choose. Each of the first kMaxTenants names has its own number and account while the router runs;
// later ones share as many, by their hash. The core uses numbers only. Threads: Enter and Prepare: any; all
// others: the decision thread's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/requests/check_request.h"
#include "router/requests/request.h"
#include "router/requests/tenant_limits.h"
#include "router/requests/tenant_totals.h"

namespace bfio::router {

class Tenants {
 public:
  static constexpr uint32_t kMaxTenants = 1024;

  explicit Tenants(TenantLimits limits) : limiter_(std::move(limits), kMaxTenants) {}

  // Charges the request, or the outputs of a call like it, to its tenant's limits: all or none.
  // RESOURCE_EXHAUSTED, with a retry delay; INVALID_ARGUMENT for more outputs than can ever enter. Any
  // thread.
  absl::StatusOr<TenantLimiter::Ticket> Enter(const ClientRequest& request, absl::Time now) {
    auto entered = EnterAll(request, 1, now);
    if (!entered.ok()) return entered.status();
    return std::move(entered->front());
  }
  absl::StatusOr<std::vector<TenantLimiter::Ticket>> EnterAll(const ClientRequest& request, size_t outputs,
                                                              absl::Time now) {
    const int64_t tokens = int64_t{request.prompt_tokens} + request.max_new_tokens;
    auto entered = limiter_.EnterAll(request.tenant, tokens, static_cast<int64_t>(outputs), now);
    if (!entered.ok()) refused_.fetch_add(1, std::memory_order_relaxed);
    return entered;
  }
  // INVALID_ARGUMENT when the tenant's requests may not have that priority. Lowers a priority that the client
  // has not chosen itself, and sets the tenant's objective if the client has none. Any thread.
  absl::Status Prepare(ClientRequest& request) const {
    // A bare resume starts no request, so its priority does not count.
    if (IsBareResume(request)) return absl::OkStatus();
    if (!request.ttft_objective) request.ttft_objective = limiter_.TtftObjective(request.tenant);
    if (request.priority_unset) request.priority = limiter_.FitPriority(request.tenant, request.priority);
    return limiter_.CheckPriority(request.tenant, request.priority);
  }
  // As of TenantLimiter. Any thread.
  int64_t Concurrent(const std::string& tenant) const { return limiter_.Concurrent(tenant); }
  TenantLimiter::Ticket Charged(const ClientRequest& request, absl::Time now) {
    return limiter_.Charged(request.tenant, now);
  }
  // Number of calls that Enter and EnterAll have refused.
  int64_t refused() const { return refused_.load(std::memory_order_relaxed); }

  // 0 for the default tenant "", 1 .. kMaxTenants for the first names, the next kMaxTenants for the others.
  uint32_t Number(const std::string& name) {
    if (name.empty()) return 0;
    const auto it = numbers_.find(name);
    if (it != numbers_.end()) return it->second;
    const auto next = static_cast<uint32_t>(numbers_.size()) + 1;
    if (next > kMaxTenants) return next + static_cast<uint32_t>(std::hash<std::string>()(name) % kMaxTenants);
    numbers_.emplace(name, next);
    return next;
  }

  TenantTotals& totals() { return totals_; }
  const TenantTotals& totals() const { return totals_; }

 private:
  // Outlives the requests, which hold tickets of it.
  TenantLimiter limiter_;
  std::atomic<int64_t> refused_{0};
  absl::flat_hash_map<std::string, uint32_t> numbers_;
  TenantTotals totals_;
};

}  // namespace bfio::router
