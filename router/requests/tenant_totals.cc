#include "router/requests/tenant_totals.h"

namespace bfio::router {

TenantTotal& TenantTotals::Of(uint32_t number, const std::string& name) {
  const bool named = number <= kNamed && name != kOther;
  const size_t slot = named ? number : kNamed + 1;
  if (slot >= totals_.size()) totals_.resize(slot + 1);
  TenantTotal& total = totals_[slot];
  if (total.accepted == 0) total.tenant = named ? name : std::string(kOther);
  return total;
}

void TenantTotals::OnAccepted(uint32_t number, const std::string& name, uint64_t prompt_tokens) {
  TenantTotal& total = Of(number, name);
  ++total.accepted;
  total.prompt_tokens += static_cast<int64_t>(prompt_tokens);
}

void TenantTotals::OnTokens(uint32_t number, const std::string& name, uint64_t tokens) {
  Of(number, name).generated_tokens += static_cast<int64_t>(tokens);
}

void TenantTotals::OnCompleted(uint32_t number, const std::string& name) {
  ++Of(number, name).completed;
}

std::vector<TenantTotal> TenantTotals::Fill() const {
  std::vector<TenantTotal> totals;
  for (const TenantTotal& total : totals_) {
    if (total.accepted > 0) totals.push_back(total);
  }
  return totals;
}

}  // namespace bfio::router
