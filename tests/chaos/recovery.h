// Measures how long a group pauses when it loses or gains a worker.
#ifndef BFIO_TESTS_CHAOS_RECOVERY_H_
#define BFIO_TESTS_CHAOS_RECOVERY_H_

#include "absl/time/time.h"

namespace bfio::chaos {

struct RecoveryOptions {
  int workers = 8;
  int repeats = 5;
  absl::Duration step_timeout = absl::Seconds(1);
  // How long throughput is measured, each time.
  absl::Duration measure = absl::Seconds(4);
};

// Under saturating load: kill -9 of a worker and its return; SIGSTOP of a worker, SIGCONT and its return;
// each `repeats` times. Prints the time from the signal to the first step of the group without the worker,
// the longest pause of the others when it returns, and throughput before and after. Exit code: 1 when a
// median exceeds its bound (kill: 300 ms; stop: step_timeout + 300 ms) or a step never came.
int MeasureRecovery(const RecoveryOptions& options);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_RECOVERY_H_
