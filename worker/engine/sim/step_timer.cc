#include "worker/engine/sim/step_timer.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

namespace bfio::worker {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

void SetPreciseTimers() {
  // Timer slack is a property of the thread, so each thread sets it once.
  static thread_local const bool done = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL) == 0;
  (void)done;
}

}  // namespace

int64_t RealStepTimer::NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * kNsPerSecond + now.tv_nsec;
}

void RealStepTimer::SleepUntilNs(int64_t time_ns) {
  SetPreciseTimers();
  // An absolute time, so that delays by signals or late starts do not accumulate.
  const timespec until{time_ns / kNsPerSecond, time_ns % kNsPerSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace bfio::worker
