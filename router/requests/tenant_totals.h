// Totals per tenant, for metrics. A bounded number of time series, whatever names clients choose: the first
// kNamed tenants have their own totals; all later ones (and a tenant of that name) share those of "other".
// Owned by the decision thread; not thread-safe. Costs one array access per request and step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace bfio::router {

// Totals since the router started.
struct TenantTotal {
  std::string tenant;
  int64_t accepted = 0;
  int64_t completed = 0;
  // Prompt tokens of accepted requests; tokens delivered.
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

  // Totals in the order of arrival, "other" last; without tenants that have no requests.
  std::vector<TenantTotal> Fill() const;

 private:
  TenantTotal& Of(uint32_t number, const std::string& name);

  // Totals by the tenant's number; the last one, once it exists, is shared by all later tenants. An entry
  // without requests is unused.
  std::vector<TenantTotal> totals_;
};

}  // namespace bfio::router
