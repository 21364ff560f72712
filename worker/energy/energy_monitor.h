// Reads a rank's energy meter in the background and splits the readings.
//
// Purpose: reading a device takes up to milliseconds, which the step loop does not have. Windows are long,
// since devices refresh their counters some ten times a second only: 5 s keep that error near 1 %. A window
// in which the counter went backwards, jumped by more than kMaxWatts would give, or could not be read is left
// out, logged once; the next one begins again. What is not measured is absent, never zero. Threads:
// the constructor starts one that reads the meter, the destructor ends it; AddStep and TakeNews from any one
// thread, without waiting.
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

// What the worker has measured so far (proto/bfio/v1/worker.proto, Energy).
struct EnergyReading {
  std::string device;
  EnergySums sums;
  // Mean over the last window.
  double watts = 0;
  std::optional<double> idle_watts;
};

class EnergyMonitor {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(5);
  // No device draws more.
  static constexpr double kMaxWatts = 20e3;

  explicit EnergyMonitor(std::unique_ptr<EnergyMeter> meter, absl::Duration window = kWindow);
  ~EnergyMonitor();
  EnergyMonitor(const EnergyMonitor&) = delete;
  EnergyMonitor& operator=(const EnergyMonitor&) = delete;

  // A step that has ended: nanoseconds of work, and of waiting for others.
  void AddStep(int64_t busy_ns, int64_t barrier_ns) {
    busy_ns_.fetch_add(busy_ns, std::memory_order_relaxed);
    barrier_ns_.fetch_add(barrier_ns, std::memory_order_relaxed);
  }
  // What has been measured, if a window has ended since the last call.
  std::optional<EnergyReading> TakeNews();

 private:
  void Run();
  void EndWindow(absl::Time now, const absl::StatusOr<double>& joules);

  const std::unique_ptr<EnergyMeter> meter_;
  const absl::Duration window_;
  std::atomic<int64_t> busy_ns_{0};
  std::atomic<int64_t> barrier_ns_{0};
  // There is a reading that was not taken yet.
  std::atomic<bool> news_{false};

  // The thread's: where the present window began.
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
