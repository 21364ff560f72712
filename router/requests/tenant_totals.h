// What each tenant asked for and got, for metrics.
//
// Purpose: a bounded number of series, whatever names clients think up: the first kNamed tenants have sums of
// their own, all later ones share those of "other" (and so does a tenant of that name). Owned by the decision
// thread; not thread-safe. Costs an index per request's tokens of a step.
#ifndef BFIO_ROUTER_REQUESTS_TENANT_TOTALS_H_
#define BFIO_ROUTER_REQUESTS_TENANT_TOTALS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "bfio/v1/admin.pb.h"

namespace bfio::router {

class TenantTotals {
 public:
  static constexpr uint32_t kNamed = 64;
  static constexpr absl::string_view kOther = "other";

  // `number` is Tenants::Number(name).
  void OnAccepted(uint32_t number, const std::string& name, uint64_t prompt_tokens);
  void OnTokens(uint32_t number, const std::string& name, uint64_t tokens);
  void OnCompleted(uint32_t number, const std::string& name);

  // In the order they came, "other" last; tenants that never came are left out.
  void Fill(v1::ClusterState& state) const;

 private:
  v1::TenantTotals& Of(uint32_t number, const std::string& name);

  // By number; the last one, once it is needed, is everybody else's. Without a request: not seen.
  std::vector<v1::TenantTotals> totals_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_TENANT_TOTALS_H_
