// TensorRT-LLM: the oldest U requests, longest first, each to the rank with least (active tokens, active
// requests); a rank gets no more requests once it has max(ceil((active + U) / G), most active requests of any
// rank). Source: DefaultADPRouter of tensorrt_llm/_torch/pyexecutor/scheduler/adp_router.py, without target
// ranks. Active tokens there are prompt tokens; here they are resident KV tokens, with which the rule
// balances better. The source ignores limits on slots and KV tokens. Here a request that these limits leave
// over goes, in pool order, to the rank with least tokens that has free capacity, whatever the cap. Baseline;
// the rule TensorRT-LLM ships. Threads: as Policy.
#pragma once

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
  // Number of requests that a rank may have after this plan.
  int32_t Cap() const;
  void PlaceLongestFirst(const Snapshot& snapshot, Decision& decision);
  void PlaceRest(const Snapshot& snapshot, Decision& decision);
  // Calls `stop_` at some of the requests; sets stopped_early when it has ended the decision.
  bool Stopped(size_t request, Decision& decision) const;

  StopSignal stop_;
  FreeCapacity free_;
  // The oldest U, longest first.
  std::vector<int32_t> order_;
  std::vector<char> placed_;
};

}  // namespace bfio::core
