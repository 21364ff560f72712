#include "router/requests/tenant_totals.h"

namespace bfio::router {

v1::TenantTotals& TenantTotals::Of(uint32_t number, const std::string& name) {
  const bool named = number <= kNamed && name != kOther;
  const size_t slot = named ? number : kNamed + 1;
  if (slot >= totals_.size()) totals_.resize(slot + 1);
  v1::TenantTotals& totals = totals_[slot];
  if (totals.accepted() == 0) totals.set_tenant(named ? name : std::string(kOther));
  return totals;
}

void TenantTotals::OnAccepted(uint32_t number, const std::string& name, uint64_t prompt_tokens) {
  v1::TenantTotals& totals = Of(number, name);
  totals.set_accepted(totals.accepted() + 1);
  totals.set_prompt_tokens(totals.prompt_tokens() + prompt_tokens);
}

void TenantTotals::OnTokens(uint32_t number, const std::string& name, uint64_t tokens) {
  v1::TenantTotals& totals = Of(number, name);
  totals.set_generated_tokens(totals.generated_tokens() + tokens);
}

void TenantTotals::OnCompleted(uint32_t number, const std::string& name) {
  v1::TenantTotals& totals = Of(number, name);
  totals.set_completed(totals.completed() + 1);
}

void TenantTotals::Fill(v1::ClusterState& state) const {
  for (const v1::TenantTotals& totals : totals_) {
    if (totals.accepted() > 0) *state.add_tenants() = totals;
  }
}

}  // namespace bfio::router
