// A leader's right to decide, which runs out.
//
// Purpose: the decision thread looks at it before it acts, so that a router that stood still (stopped, or its
// machine was) while another was elected decides nothing more. By the monotonic clock, which goes on while a
// program is stopped. Threads: any.
#ifndef BFIO_ROUTER_ELECTION_LEASE_H_
#define BFIO_ROUTER_ELECTION_LEASE_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace bfio::router {

class Lease {
 public:
  explicit Lease(absl::Time end) { Extend(end); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // `now` and `end`: of MonotonicNow().
  bool Holds(absl::Time now) const { return absl::ToUnixNanos(now) < end_ns_.load(); }
  absl::Time end() const { return absl::FromUnixNanos(end_ns_.load()); }
  void Extend(absl::Time end) { end_ns_ = absl::ToUnixNanos(end); }
  // For good: whoever is renewing it does not go on.
  void Lose() { end_ns_ = 0; }

 private:
  std::atomic<int64_t> end_ns_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ELECTION_LEASE_H_
