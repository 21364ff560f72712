#include "router/core/scheduler/tenant_service.h"

#include <algorithm>
#include <limits>

namespace bfio::core {

TenantService::Account& TenantService::Of(uint32_t tenant) {
  const auto [it, is_new] = index_.try_emplace(tenant, static_cast<int32_t>(accounts_.size()));
  if (is_new) accounts_.push_back({tenant});
  return accounts_[it->second];
}

void TenantService::OnWaiting(uint32_t tenant) {
  Account& account = Of(tenant);
  if (account.waiting == 0) {
    account.served = std::max(account.served, waiting_ > 0 ? std::max(LeastWaiting(), floor_) : last_served_);
  }
  ++account.waiting;
  ++waiting_;
}

void TenantService::OnLeft(uint32_t tenant) {
  Account& account = Of(tenant);
  --account.waiting;
  if (--waiting_ == 0) last_served_ = account.served;
}

void TenantService::ChargePrompt(uint32_t tenant, int64_t tokens) {
  Charge(tenant, kPromptWeight * static_cast<double>(tokens), tokens < 0 ? -1 : 1);
}

void TenantService::ChargeOutput(uint32_t tenant, int64_t tokens) {
  Charge(tenant, kOutputWeight * static_cast<double>(tokens), 0);
}

void TenantService::Charge(uint32_t tenant, double tokens, int64_t requests) {
  Account& account = Of(tenant);
  account.served += tokens;
  for (Charges* charges : {&account.charges, &charges_}) {
    charges->tokens += tokens;
    charges->requests += requests;
  }
}

double TenantService::MeanCharge(uint32_t tenant) const {
  const auto it = index_.find(tenant);
  const Charges* charges = it == index_.end() ? nullptr : &accounts_[it->second].charges;
  if (charges == nullptr || charges->requests < 1) charges = &charges_;
  return charges->requests < 1 ? 1 : std::max(1.0, charges->tokens / static_cast<double>(charges->requests));
}

double TenantService::Served(uint32_t tenant) const {
  const auto it = index_.find(tenant);
  return it == index_.end() ? 0 : accounts_[it->second].served;
}

double TenantService::LeastWaiting() const {
  double least = std::numeric_limits<double>::infinity();
  for (const Account& account : accounts_) {
    if (account.waiting > 0) least = std::min(least, account.served);
  }
  return least;
}

}  // namespace bfio::core
