// Limits per tenant: requests and tokens per second, concurrent requests, priority; and an objective. A flood
// of one tenant is refused before it costs the others anything. Each rate has a token bucket, at least one
// second deep. A request larger than its bucket passes when the bucket is full, and leaves it negative. A
// request is charged its prompt and its maximal output; what it does not use is returned at its end. The
// outputs of a call enter together or not at all. Bounded: beyond max_tenants names, further tenants share
// as many accounts, by their hash. Threads: any. A ticket may be destroyed on any thread, but not after its
// limiter.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/token_bucket.h"

namespace bfio::router {

// Limits of one tenant; 0: no limit.
struct TenantLimit {
  double requests_per_s = 0;
  double tokens_per_s = 0;
  int64_t concurrent = 0;
  // The largest priority of its requests; empty: the API's limit.
  std::optional<int32_t> priority;
  // ClientRequest::ttft_objective of its requests that have none.
  std::optional<absl::Duration> ttft_objective;
};

// Limits by tenant; the entry "*" applies to each tenant without an entry of its own, separately.
using TenantLimits = std::map<std::string, TenantLimit>;

// "TENANT:rps=NUMBER,tps=NUMBER,concurrent=NUMBER,priority=NUMBER,ttft=SECONDS;..."; empty: no limits.
// INVALID_ARGUMENT names the part that is wrong.
absl::StatusOr<TenantLimits> ParseTenantLimits(absl::string_view text);

class TenantLimiter {
 public:
  // `max_tenants`: bound on the accounts of tenants without an entry of their own.
  TenantLimiter(TenantLimits limits, size_t max_tenants)
      : limits_(std::move(limits)), max_tenants_(max_tenants) {}

  // Holds a request's share of its tenant's limits. Empty when no limit applies.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept {
      Release();
      limiter_ = std::exchange(other.limiter_, nullptr);
      account_ = std::move(other.account_);
      charged_ = other.charged_;
      used_ = other.used_;
      return *this;
    }
    ~Ticket() { Release(); }
    // Tokens that the request used; the rest of its charge is returned at its end.
    void set_used(int64_t tokens) { used_ = tokens; }
    void Release();

   private:
    friend class TenantLimiter;
    TenantLimiter* limiter_ = nullptr;
    std::string account_;
    int64_t charged_ = 0;
    int64_t used_ = 0;
  };

  // INVALID_ARGUMENT when a request of the tenant may not have that priority.
  absl::Status CheckPriority(const std::string& tenant, int32_t priority) const;
  // That priority, or the largest that a request of the tenant may have.
  int32_t FitPriority(const std::string& tenant, int32_t priority) const;
  // TenantLimit::ttft_objective.
  std::optional<absl::Duration> TtftObjective(const std::string& tenant) const;

  // How many requests the tenant may have at a time; 0: no limit.
  int64_t Concurrent(const std::string& tenant) const;
  // For a request that an earlier router has charged: it counts as running, whatever the limits.
  Ticket Charged(const std::string& tenant, absl::Time now);

  // For a call with one output, or with `outputs`, each of which may use up to `tokens`: a ticket for each
  // output, or none at all. RESOURCE_EXHAUSTED, with the limit's name and a retry delay, when the tenant
  // exceeds a limit; INVALID_ARGUMENT for more outputs than the tenant may have concurrent requests.
  absl::StatusOr<Ticket> Enter(const std::string& tenant, int64_t tokens, absl::Time now);
  absl::StatusOr<std::vector<Ticket>> EnterAll(const std::string& tenant, int64_t tokens, int64_t outputs,
                                               absl::Time now);

 private:
  struct Account {
    TenantLimit limit;
    TokenBucket requests, tokens;
    int64_t running = 0;
  };
  // The tenant's entry, or that of "*"; null: no limits.
  const TenantLimits::value_type* LimitOf(const std::string& tenant) const;
  // The tenant's account; null: no limits.
  Account* Find(const std::string& tenant, std::string& name, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(const Ticket& ticket);

  const TenantLimits limits_;
  const size_t max_tenants_;
  Mutex mutex_;
  absl::flat_hash_map<std::string, Account> accounts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router
