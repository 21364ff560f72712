// Which calls are tried again, and after which pause.
//
// Purpose: retries that do not make an overload worse. The router's RetryInfo is a lower bound. Without it
// the bound of the pause doubles from try to try, and the pause is uniform between 0 and the bound ("full
// jitter"), so that clients that were refused together do not return together. Threads: one.
#ifndef BFIO_TOOLS_CLIENT_RETRY_H_
#define BFIO_TOOLS_CLIENT_RETRY_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/rng.h"

namespace bfio::client {

struct RetryOptions {
  // Refusals that a request may receive and still be sent again before its first token: RESOURCE_EXHAUSTED
  // with RetryInfo, UNAVAILABLE. 0: none.
  int max_retries = 5;
  // How long a resumable request tries to resume its broken stream without receiving a message. The router
  // ends the request after its --client_timeout.
  absl::Duration resume_patience = absl::Seconds(30);
  absl::Duration first_pause = absl::Milliseconds(50);
  absl::Duration last_pause = absl::Seconds(2);
};

class Backoff {
 public:
  Backoff(const RetryOptions& options, uint64_t seed) : options_(options), rng_(seed) {}

  // The pause before the next try. With `told` (the delay from RetryInfo) it is between `told` and 1.5 times
  // `told`.
  absl::Duration Next(std::optional<absl::Duration> told);
  // Called after progress: the next pause starts at the first bound.
  void Reset() { bound_ = absl::ZeroDuration(); }

 private:
  const RetryOptions options_;
  absl::Duration bound_;
  Rng rng_;
};

// True when the router may accept the same request later: it refused the request for now, or could not be
// reached.
bool MayComeAgain(const absl::Status& status);

}  // namespace bfio::client

#endif  // BFIO_TOOLS_CLIENT_RETRY_H_
