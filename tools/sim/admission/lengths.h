// How much longer a request is believed to run, asked again when it outlives what was believed.
//
// Purpose: lets an admission rule plan with a predictor that learns (router/core/lookahead) in place of a
// length that came with the request. Ownership: borrowed by the rule, outlives it. Threads: the rule's.
// Tokens; a request makes one a round.
#ifndef BFIO_TOOLS_SIM_ADMISSION_LENGTHS_H_
#define BFIO_TOOLS_SIM_ADMISSION_LENGTHS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "router/core/lookahead/lookahead.h"
#include "tools/sim/admission/admission_rule.h"

namespace bfio::sim {

class Lengths {
 public:
  virtual ~Lengths() = default;

  // Tokens it will make beyond the `made` it has made already, at least 1.
  virtual int64_t Left(const AdmissionRequest& request, int64_t made) = 0;
  // It ended by itself, or was ended by its limit, with `made` tokens.
  virtual void Ended(const AdmissionRequest& request, int64_t made) = 0;
};

// The prediction of a lookahead: the number of tokens that suffices with probability `confidence`, at most
// what its reach (kMaxHorizonSteps) and the request's limit leave. REQUIRES: lookahead->predicts(), 0 <
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

#endif  // BFIO_TOOLS_SIM_ADMISSION_LENGTHS_H_
