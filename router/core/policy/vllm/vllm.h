// vLLM: the oldest request goes to the worker with the least max(clients * in_flight, waiting + running) + 6
// * waiting * max(0, kv - 0.5); the search for the least begins one worker further each time.
//
// Source: vLLM's internal data-parallel balancer, DPLBAsyncMPClient of vllm/v1/engine/core_client.py since
// pull request 49204. There every request is sent to an engine at once and waits there. Here the router holds
// the queue. So a worker's `waiting` is the number of requests that this plan has given it, which start in
// its next step; `running` is the number of its active ones, in flight included; `in_flight` is the sum of
// both; `kv` is the used share of its KV tokens; `clients` is 1. Without KV pressure this is least requests.
// Baseline; the rule vLLM ships. Threads: as Policy.
#pragma once

#include <cstdint>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class VllmPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "vllm"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  double Score(WorkerIndex worker) const;

  FreeCapacity free_;
  // By worker: requests that this plan has given it.
  std::vector<int32_t> waiting_;
  WorkerIndex start_ = 0;
};

}  // namespace bfio::core
