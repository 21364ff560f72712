// The rules that balance over chains (router/core/chain/dispatcher.h) as policies: jffc, sa_jsq, jiq.
//
// Purpose: one interface for all decisions. To a policy a chain of servers is a worker with slots and a
// service time; the waiting pool is the central queue, offered in its order. A worker that cannot take a
// request, for want of a slot or of KV, counts as full.
// sed and jsq are not here: they let a request wait at a full chain while another has room, and here nobody
// waits but in the pool. Over what has room sed is jffc, and jsq is sa_jsq with its ties drawn.
// Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_CHAIN_RULE_CHAIN_RULE_H_
#define BFIO_ROUTER_CORE_POLICY_CHAIN_RULE_CHAIN_RULE_H_

#include <memory>
#include <string>
#include <vector>

#include "router/core/chain/dispatcher.h"
#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class ChainRulePolicy final : public Policy {
 public:
  // REQUIRES: `rule` is a dispatcher with a central queue: jffc, sa_jsq or jiq.
  ChainRulePolicy(absl::string_view rule, uint64_t seed);

  absl::string_view name() const override { return name_; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  const std::string name_;
  const std::unique_ptr<ChainDispatcher> rule_;
  FreeCapacity free_;
  // Workers, fastest first, and what the rule sees of them.
  std::vector<WorkerIndex> order_;
  std::vector<ChainView> chains_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_CHAIN_RULE_CHAIN_RULE_H_
