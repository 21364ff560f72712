// Reads a rank's energy meter in the background and splits the readings.
//
// Purpose: reading a device takes up to milliseconds, too long for the step loop. Windows are long because
// devices refresh their counters only about ten times a second: 5 s keep that error near 1 %. A window in
// which the counter went backwards, exceeded kMaxWatts, or could not be read is left out and logged once; the
// next window starts anew. What is not measured is absent, never zero. Threads: the constructor starts a
// thread that reads the meter, the destructor ends it. One other thread may call AddStep and TakeNews, which
// do not block.
#ifndef BFIO_WORKER_ENERGY_ENERGY_MONITOR_H_
#define BFIO_WORKER_ENERGY_ENERGY_MONITOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "worker/energy/energy_meter.h"
#include "worker/energy/energy_split.h"

namespace bfio::worker {

// Totals that the worker has measured so far (proto/bfio/v1/worker.proto, Energy).
struct EnergyReading {
  std::string device;
  EnergySums sums;
  // Mean power over the last window.
  double watts = 0;
  std::optional<double> idle_watts;
};

class EnergyMonitor {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(5);
  // Upper bound of any device's power; a larger reading is an error.
  static constexpr double kMaxWatts = 20e3;

  explicit EnergyMonitor(std::unique_ptr<EnergyMeter> meter, absl::Duration window = kWindow);
  ~EnergyMonitor();
  EnergyMonitor(const EnergyMonitor&) = delete;
  EnergyMonitor& operator=(const EnergyMonitor&) = delete;

  // Adds a completed step: nanoseconds of work, and of waiting for other ranks.
  void AddStep(int64_t busy_ns, int64_t barrier_ns) {
    busy_ns_.fetch_add(busy_ns, std::memory_order_relaxed);
    barrier_ns_.fetch_add(barrier_ns, std::memory_order_relaxed);
  }
  // The totals, if a window has ended since the last call.
  std::optional<EnergyReading> TakeNews();

 private:
  void Run();
  void EndWindow(absl::Time now, const absl::StatusOr<double>& joules);

  const std::unique_ptr<EnergyMeter> meter_;
  const absl::Duration window_;
  std::atomic<int64_t> busy_ns_{0};
  std::atomic<int64_t> barrier_ns_{0};
  // Whether there is a reading that was not taken yet.
  std::atomic<bool> news_{false};

  // Used only by the thread: the state at the start of the current window.
  EnergySplit split_;
  absl::Time start_;
  std::optional<double> start_joules_;
  bool warned_ = false;

  Mutex mutex_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  EnergyReading reading_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENERGY_ENERGY_MONITOR_H_
