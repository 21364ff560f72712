// Least tokens: in pool order, each request goes to the least loaded worker that can take it (ties: lowest
// index).
//
// Source: list scheduling (Graham, 1966); "JSQ" by tokens in the code of the BF-IO paper; the rule that
// engines ship.
//
// Purpose: baseline; balance by where alone, one request after the other. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_LEAST_TOKENS_LEAST_TOKENS_H_
#define BFIO_ROUTER_CORE_POLICY_LEAST_TOKENS_LEAST_TOKENS_H_

#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class LeastTokensPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "least_tokens"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  FreeCapacity free_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_LEAST_TOKENS_LEAST_TOKENS_H_
