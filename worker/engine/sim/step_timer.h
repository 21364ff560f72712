// Time for the sim engine: a clock and a precise sleep, replaceable in tests.
#ifndef BFIO_WORKER_ENGINE_SIM_STEP_TIMER_H_
#define BFIO_WORKER_ENGINE_SIM_STEP_TIMER_H_

#include <cstdint>

namespace bfio::worker {

// Threads: used by one thread at a time.
class StepTimer {
 public:
  virtual ~StepTimer() = default;

  // Monotonic, in nanoseconds.
  virtual int64_t NowNs() = 0;
  // Returns at once when `time_ns` has passed.
  virtual void SleepUntilNs(int64_t time_ns) = 0;
};

// CLOCK_MONOTONIC. Sets the calling thread's timer slack to 1 ns (the default of 50 us is 1 % of a 5 ms
// step).
class RealStepTimer final : public StepTimer {
 public:
  int64_t NowNs() override;
  void SleepUntilNs(int64_t time_ns) override;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_SIM_STEP_TIMER_H_
