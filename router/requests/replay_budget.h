// The bytes that the router keeps so that requests can be replayed and resumed: prompts and delivered tokens.
//
// Purpose: a bound on the sum and one per request; a request beyond it continues, and is not replayed when
// its worker is lost. Pure counting; the decision thread's.
#ifndef BFIO_ROUTER_REQUESTS_REPLAY_BUDGET_H_
#define BFIO_ROUTER_REQUESTS_REPLAY_BUDGET_H_

#include <cstdint>

namespace bfio::router {

class ReplayBudget {
 public:
  // Bytes.
  ReplayBudget(int64_t total, int64_t per_request) : total_(total), per_request_(per_request) {}

  enum class Outcome { kKept, kRequestTooLarge, kFull };

  // Adds to what a request holds, unless a bound forbids it. REQUIRES: bytes >= 0; `held` is what earlier
  // calls for this request have left there, at first 0.
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
