// The service that each tenant has received: the virtual token counter of Sheng et al., "Fairness in Serving
// Large Language Models" (OSDI 2024), algorithm 2. The measure of tenant fairness. A tenant is charged for a
// prompt when its request is placed, and for every generated token. A tenant without waiting requests
// accumulates no credit. When it returns, its counter is raised to the least counter of the tenants with a
// waiting request that could run, or, when no request waits, to that of the tenant that waited last. Owned by
// the scheduler; one thread. Cost: O(1) per event, O(tenants) for the least counter.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace bfio::core {

class TenantService {
 public:
  // The charge for a prompt token and for a generated token: the paper's w_p and w_q.
  static constexpr double kPromptWeight = 1;
  static constexpr double kOutputWeight = 2;

  // A request of the tenant has entered the waiting pool, or has left it for any reason.
  void OnWaiting(uint32_t tenant);
  void OnLeft(uint32_t tenant);

  // A negative number refunds.
  void ChargePrompt(uint32_t tenant, int64_t tokens);
  void ChargeOutput(uint32_t tenant, int64_t tokens);

  // The tenant's counter, in weighted tokens.
  double Served(uint32_t tenant) const;
  // Sets the least counter of the tenants with a waiting request that could run, at the last decision.
  void SetFloor(double served) { floor_ = served; }
  // Mean charge of the tenant's requests so far, in weighted tokens. Where the tenant has had none, the mean
  // over all tenants; 1 where there were no requests at all.
  double MeanCharge(uint32_t tenant) const;
  int32_t tenants() const { return static_cast<int32_t>(accounts_.size()); }

 private:
  // The least counter of the tenants that have a request waiting. REQUIRES: a request waits.
  double LeastWaiting() const;

  // Weighted tokens, and the number of requests for which they were charged.
  struct Charges {
    double tokens = 0;
    int64_t requests = 0;
  };
  void Charge(uint32_t tenant, double tokens, int64_t requests);

  struct Account {
    uint32_t tenant = 0;
    double served = 0;
    int64_t waiting = 0;
    Charges charges;
  };
  Account& Of(uint32_t tenant);

  // In order of arrival, so that nothing depends on the map's order.
  std::vector<Account> accounts_;
  absl::flat_hash_map<uint32_t, int32_t> index_;
  int64_t waiting_ = 0;
  // Charges of all tenants.
  Charges charges_;
  // The counter of the tenant whose last request emptied the pool.
  double last_served_ = 0;
  double floor_ = 0;
};

}  // namespace bfio::core
