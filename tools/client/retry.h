// What is tried again, and when.
//
// Purpose: patience that does not make an overload worse. The router's RetryInfo is a lower bound; without
// one the pause doubles from try to try and is drawn evenly from 0 to its bound ("full jitter"), so that
// clients that were refused together do not come back together. Threads: one.
#ifndef BFIO_TOOLS_CLIENT_RETRY_H_
#define BFIO_TOOLS_CLIENT_RETRY_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/rng.h"

namespace bfio::client {

struct RetryOptions {
  // Refusals that a request survives before its first token: RESOURCE_EXHAUSTED with RetryInfo, UNAVAILABLE.
  // 0: none.
  int max_retries = 5;
  // How long a resumable request keeps trying to resume its broken stream without progress; the
  // router forgets it after its --client_timeout.
  absl::Duration resume_patience = absl::Seconds(30);
  absl::Duration first_pause = absl::Milliseconds(50);
  absl::Duration last_pause = absl::Seconds(2);
};

class Backoff {
 public:
  Backoff(const RetryOptions& options, uint64_t seed) : options_(options), rng_(seed) {}

  // The pause before the next try: at least `told` (from RetryInfo) and at most half as much again, if there
  // is one.
  absl::Duration Next(std::optional<absl::Duration> told);
  // After progress the pauses begin small again.
  void Reset() { bound_ = absl::ZeroDuration(); }

 private:
  const RetryOptions options_;
  absl::Duration bound_;
  Rng rng_;
};

// The router, or the way to it, may take the same request later: it has refused it, or it was not there.
bool MayComeAgain(const absl::Status& status);

}  // namespace bfio::client

#endif  // BFIO_TOOLS_CLIENT_RETRY_H_
