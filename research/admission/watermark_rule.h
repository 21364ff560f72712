// First come, first served while blocks last, as in vLLM.
//
// Purpose: the baseline that uses no lengths. Memory is allocated in blocks as requests grow. The next
// request in order of arrival starts while its prompt's blocks leave a watermark of free ones. When the
// running requests no longer fit, the one that started last is preempted, repeatedly until the rest fits. It
// is the first to be started again, with its generated tokens as part of the prompt. The oldest is never
// preempted while it fits alone, so every request ends. Threads: the rule's.
#pragma once

#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "research/admission/admission_rule.h"

namespace bfio::sim {

class WatermarkRule final : public AdmissionRule {
 public:
  // `share`: the share of memory that prompts leave free; `block`: tokens per block. REQUIRES: 0 <= share <
  // 1, block >= 1.
  WatermarkRule(const AdmissionOptions& options, double share, int64_t block);

  void OnArrival(const AdmissionRequest& request) override;
  void Decide(int64_t round, AdmissionRound& out) override;
  void OnEnd(RequestId id) override;
  int64_t waiting() const override { return static_cast<int64_t>(waiting_.size()); }

 private:
  struct Entry {
    int64_t prompt = 0, arrival = 0, began = 0;
  };

  int64_t Blocks(int64_t tokens) const { return (tokens + block_ - 1) / block_; }

  const int64_t block_, blocks_, free_;
  int64_t arrivals_ = 0;
  absl::flat_hash_map<RequestId, Entry> requests_;
  // Waiting requests by arrival; running ones by start, then arrival.
  std::map<int64_t, RequestId> waiting_;
  std::map<std::pair<int64_t, int64_t>, RequestId> running_;
};

}  // namespace bfio::sim
