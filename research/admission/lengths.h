// The predicted remaining length of a request, updated when the request exceeds it.
//
// Purpose: lets an admission rule plan with a predictor that learns (router/core/lookahead) instead of a
// length that is given with the request. Ownership: borrowed by the rule, outlives it. Threads: the rule's.
// Unit: tokens; a request generates one per round.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "research/admission/admission_rule.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::sim {

class Lengths {
 public:
  virtual ~Lengths() = default;

  // Predicted number of tokens, at least 1, that the request generates beyond the `made` tokens so far.
  virtual int64_t Left(const AdmissionRequest& request, int64_t made) = 0;
  // The request has ended with `made` tokens, by itself or at its limit.
  virtual void Ended(const AdmissionRequest& request, int64_t made) = 0;
};

// The prediction of a lookahead: the number of tokens that suffices with probability `confidence`, at most
// the lookahead's range (kMaxHorizonSteps) and the request's limit. REQUIRES: lookahead->predicts(), 0 <
// confidence < 1, requests with a limit (AdmissionRequest::most).
class LookaheadLengths final : public Lengths {
 public:
  LookaheadLengths(std::unique_ptr<core::Lookahead> lookahead, double confidence);

  int64_t Left(const AdmissionRequest& request, int64_t made) override;
  void Ended(const AdmissionRequest& request, int64_t made) override;

 private:
  const std::unique_ptr<core::Lookahead> lookahead_;
  const double confidence_;
  std::vector<double> alive_;
};

}  // namespace bfio::sim
