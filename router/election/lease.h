// A leader's permission to make decisions, which expires. The decision thread checks it before it acts, so
// that a router that was paused (stopped, or its machine asleep) while another was elected takes no more
// decisions. The renewing thread detects when the decision thread stops checking. Times are those of
// CLOCK_BOOTTIME, which continues while a program or a machine sleeps. A virtual machine cannot detect that
// it was paused: there only terms protect (worker/link/router_link.cc). Threads: any.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace bfio::router {

class Lease {
 public:
  static absl::Time Now() {
    timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return absl::UnixEpoch() + absl::Seconds(now.tv_sec) + absl::Nanoseconds(now.tv_nsec);
  }

  explicit Lease(absl::Time end) : end_ns_(absl::ToUnixNanos(end)), looked_ns_(absl::ToUnixNanos(Now())) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // True while the lease holds. Called by the decision thread.
  bool Check() {
    const int64_t now = absl::ToUnixNanos(Now());
    looked_ns_ = now;
    return now < end_ns_.load();
  }
  bool Holds() const { return Left() > absl::ZeroDuration(); }
  // Time left; 0 or less: the lease has expired.
  absl::Duration Left() const { return absl::FromUnixNanos(end_ns_.load()) - Now(); }

  // Called by the renewing thread.
  void Extend(absl::Time end) { end_ns_ = absl::ToUnixNanos(end); }
  // Ends the lease for good.
  void Lose() { end_ns_ = 0; }
  // Time since the last Check, or since construction.
  absl::Duration Unwatched() const { return Now() - absl::FromUnixNanos(looked_ns_.load()); }

 private:
  std::atomic<int64_t> end_ns_, looked_ns_;
};

}  // namespace bfio::router
