// What a tenant may ask for: requests and tokens per second, requests at a time, priority.
//
// Purpose: one tenant's flood is refused before it costs the others anything. A token bucket for
// each rate, at least one second deep; a request that is larger than its bucket passes when the bucket
// is full, and the bucket then owes. A request is charged its prompt and all it may make, and paid back what
// it did not. Bounded: beyond max_tenants names that were seen, further ones share one account. Threads: any;
// a ticket may be dropped on any thread, and before its limiter only.
#ifndef BFIO_ROUTER_REQUESTS_TENANT_LIMITS_H_
#define BFIO_ROUTER_REQUESTS_TENANT_LIMITS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bfio::router {

// 0: no limit.
struct TenantLimit {
  double requests_per_s = 0;
  double tokens_per_s = 0;
  int64_t concurrent = 0;
  // The largest priority that its requests may have; nothing: whatever the API allows.
  std::optional<int32_t> priority;
};

// By name; "*" is for tenants that have no entry of their own, each for itself.
using TenantLimits = std::map<std::string, TenantLimit>;

// "TENANT:rps=NUMBER,tps=NUMBER,concurrent=NUMBER,priority=NUMBER;..."; empty: no limits. INVALID_ARGUMENT
// names the part that is wrong.
absl::StatusOr<TenantLimits> ParseTenantLimits(absl::string_view text);

// Refills at `rate` a second up to a depth; may owe.
class TokenBucket {
 public:
  TokenBucket(double rate, double depth, absl::Time now)
      : rate_(rate), depth_(depth), level_(depth), at_(now) {}

  // How long until `amount` may be taken; 0: now.
  absl::Duration Wait(double amount, absl::Time now);
  // REQUIRES: Wait is 0.
  void Take(double amount) { level_ -= amount; }
  void GiveBack(double amount) { level_ = level_ + amount < depth_ ? level_ + amount : depth_; }
  bool Full(absl::Time now) { return Wait(depth_, now) == absl::ZeroDuration(); }

 private:
  double rate_, depth_, level_;
  absl::Time at_;
};

class TenantLimiter {
 public:
  // `max_tenants`: accounts of tenants that have no limits of their own.
  TenantLimiter(TenantLimits limits, size_t max_tenants)
      : limits_(std::move(limits)), max_tenants_(max_tenants) {}

  // Holds a request's place among its tenant's. Empty: there is no limit to hold.
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
    // Tokens that the request came to; what it was charged above that is paid back at its end.
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

  // RESOURCE_EXHAUSTED, saying which limit and with a retry delay, when the tenant has to wait.
  absl::StatusOr<Ticket> Enter(const std::string& tenant, int64_t tokens, absl::Time now);

 private:
  struct Account {
    TenantLimit limit;
    TokenBucket requests, tokens;
    int64_t running = 0;
  };
  // Its entry, or that of "*"; null: it has none.
  const TenantLimits::value_type* LimitOf(const std::string& tenant) const;
  // Its account; null: it has no limits.
  Account* Find(const std::string& tenant, std::string& name, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(const Ticket& ticket);

  const TenantLimits limits_;
  const size_t max_tenants_;
  Mutex mutex_;
  absl::flat_hash_map<std::string, Account> accounts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_TENANT_LIMITS_H_
