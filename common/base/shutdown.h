// SIGTERM and SIGINT as something to wait for.
//
// Purpose: programs stop cleanly. Threads: Install once from main before other threads start (the signals are
// blocked in all threads and taken by one of our own); the rest may be called from any thread.
#ifndef BFIO_COMMON_BASE_SHUTDOWN_H_
#define BFIO_COMMON_BASE_SHUTDOWN_H_

#include <functional>

#include "absl/time/time.h"

namespace bfio {

class ShutdownSignal {
 public:
  // Blocks the signals and starts the waiting thread. A second signal ends the process at once with code 130.
  static void Install();

  // True once a signal has come.
  static bool Requested();

  // Returns true as soon as a signal has come, false after `timeout`.
  static bool WaitFor(absl::Duration timeout);

  // As a signal would: for a program that wants to end itself.
  static void Request();
};

}  // namespace bfio

#endif  // BFIO_COMMON_BASE_SHUTDOWN_H_
