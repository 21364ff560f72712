// SIGTERM, SIGINT and SIGHUP as an event to wait for. Lets programs stop cleanly. Threads: call Install once
// from main before other threads start (the signals are blocked in all threads and received by a dedicated
// one); the other functions may be called from any thread.
#pragma once

#include "absl/time/time.h"

namespace bfio {

class ShutdownSignal {
 public:
  // Blocks the signals and starts the receiving thread. A second signal ends the process at once with code
  // 130.
  static void Install();

  // Whether a signal has arrived.
  static bool Requested();

  // True as soon as a signal has arrived, false after `timeout`.
  static bool WaitFor(absl::Duration timeout);

  // Has the effect of a signal; for a program that ends itself.
  static void Request();
};

}  // namespace bfio
