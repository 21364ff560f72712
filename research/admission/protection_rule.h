// Rules that consider only present memory and keep a part of it free: alpha-protection greedy and
// alpha-protection beta-clearing.
//
// Purpose: the baselines of "Online Scheduling for LLM Inference with KV Cache Constraints", Section 5, as it
// defines them; vLLM's first-come rule with a watermark is the greedy one. Requests start in the order of
// arrival while prompts and running requests stay within (1 - alpha) M. When the running requests exceed M,
// requests are evicted and start again: all of them, or each with probability beta, repeated until the rest
// fits. For small alpha, greedy repeats itself endlessly with known lengths (research/tests/unit/admission
// has the loop).
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/rng.h"
#include "research/admission/admission_rule.h"

namespace bfio::sim {

class ProtectionRule final : public AdmissionRule {
 public:
  // `beta` absent: all are evicted. REQUIRES: 0 <= alpha < 1, 0 < beta <= 1.
  ProtectionRule(const AdmissionOptions& options, double alpha, std::optional<double> beta);

  void OnArrival(const AdmissionRequest& request) override;
  void Decide(int64_t round, AdmissionRound& out) override;
  void OnEnd(RequestId id) override;
  int64_t waiting() const override { return static_cast<int64_t>(waiting_.size()); }

 private:
  struct Entry {
    AdmissionRequest request;
    int64_t arrival = 0, began = 0;
  };

  void Evict(RequestId id, AdmissionRound& out);

  const AdmissionOptions options_;
  const int64_t limit_;
  const std::optional<double> beta_;
  Rng rng_;
  int64_t arrivals_ = 0;
  absl::flat_hash_map<RequestId, Entry> requests_;
  // Running requests by arrival.
  std::map<int64_t, RequestId> waiting_, running_;
  // Sum over running requests of prompt - round of start.
  int64_t base_ = 0;
};

}  // namespace bfio::sim
