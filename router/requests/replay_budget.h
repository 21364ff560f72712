// Budget of the bytes that the router keeps for replays and resumes: prompts and delivered tokens.
//
// Purpose: bounds the sum and each request. A request beyond a bound continues, but is not replayed when its
// worker is lost. Pure counting; the decision thread's.
#ifndef BFIO_ROUTER_REQUESTS_REPLAY_BUDGET_H_
#define BFIO_ROUTER_REQUESTS_REPLAY_BUDGET_H_

#include <cstdint>

namespace bfio::router {

class ReplayBudget {
 public:
  // Both in bytes.
  ReplayBudget(int64_t total, int64_t per_request) : total_(total), per_request_(per_request) {}

  enum class Outcome { kKept, kRequestTooLarge, kFull };

  // Charges `bytes` to a request unless that exceeds a bound. REQUIRES: bytes >= 0; `held` is the request's
  // sum of earlier charges, 0 at first.
  [[nodiscard]] Outcome Charge(int64_t& held, int64_t bytes) {
    if (held + bytes > per_request_) return Outcome::kRequestTooLarge;
    if (used_ + bytes > total_) return Outcome::kFull;
    held += bytes;
    used_ += bytes;
    return Outcome::kKept;
  }

  void Release(int64_t& held) {
    used_ -= held;
    held = 0;
  }

  int64_t used() const { return used_; }

 private:
  const int64_t total_;
  const int64_t per_request_;
  int64_t used_ = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REPLAY_BUDGET_H_
