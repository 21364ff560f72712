// TensorRT-LLM: the oldest U requests, longest first, each to the rank with least (active tokens, active
// requests); a rank leaves the heap when it has reached max(ceil((active + U) / G), most active of any rank).
//
// Source: DefaultADPRouter of tensorrt_llm/_torch/pyexecutor/scheduler/adp_router.py, without target ranks.
// Active tokens there are prompt tokens; here they are the resident KV tokens, with which the rule balances
// better. Where slots or KV tokens, which the source does not consider, leave a request over, it goes in pool
// order to the rank with least tokens that has free capacity, with or without the cap.
//
// Purpose: baseline; the rule TensorRT-LLM ships. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_TRTLLM_TRTLLM_H_
#define BFIO_ROUTER_CORE_POLICY_TRTLLM_TRTLLM_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class TrtllmPolicy final : public Policy {
 public:
  // `stop` is called only where KV memory is short. When it ends a decision, stopped_early is set, and the
  // requests that are left keep waiting.
  explicit TrtllmPolicy(StopSignal stop = {}) : stop_(std::move(stop)) {}

  absl::string_view name() const override { return "trtllm"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  // Requests a rank may have after this plan.
  int32_t Cap() const;
  void PlaceLongestFirst(const Snapshot& snapshot, Decision& decision);
  void PlaceRest(const Snapshot& snapshot, Decision& decision);
  // Asks `stop_` at some of the requests; remembers in the decision when it has ended it.
  bool Stopped(size_t request, Decision& decision) const;

  StopSignal stop_;
  FreeCapacity free_;
  // The oldest U, longest first.
  std::vector<int32_t> order_;
  std::vector<char> placed_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_TRTLLM_TRTLLM_H_
