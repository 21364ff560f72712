// What each tenant asked for and got, for metrics.
//
// Purpose: a bounded number of series, whatever names clients choose: the first kNamed tenants have sums of
// their own, all later ones share those of "other" (and so does a tenant of that name). Owned by the decision
// thread; not thread-safe. Costs an index per request's tokens of a step.
#ifndef BFIO_ROUTER_REQUESTS_TENANT_TOTALS_H_
#define BFIO_ROUTER_REQUESTS_TENANT_TOTALS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace bfio::router {

// Since the router started.
struct TenantTotal {
  std::string tenant;
  int64_t accepted = 0;
  int64_t completed = 0;
  // Of accepted requests, and delivered.
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
};

class TenantTotals {
 public:
  static constexpr uint32_t kNamed = 64;
  static constexpr absl::string_view kOther = "other";

  // `number` is Tenants::Number(name).
  void OnAccepted(uint32_t number, const std::string& name, uint64_t prompt_tokens);
  void OnTokens(uint32_t number, const std::string& name, uint64_t tokens);
  void OnCompleted(uint32_t number, const std::string& name);

  // In the order they came, "other" last; tenants that never came are left out.
  std::vector<TenantTotal> Fill() const;

 private:
  TenantTotal& Of(uint32_t number, const std::string& name);

  // By number; the last one, once it is needed, is shared by all other tenants. Without a request: not seen.
  std::vector<TenantTotal> totals_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_TENANT_TOTALS_H_
