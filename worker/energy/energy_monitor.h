// Reads a rank's energy meter in the background and splits the readings. Reading a device takes up to
// milliseconds, too long for the step loop. Windows are long because devices refresh their counters only
// about ten times a second: 5 s keep that error near 1 %. A window in which the counter went backwards,
// exceeded kMaxWatts, or could not be read is left out and logged once; the next window starts anew. What is
// not measured is absent, never zero. Threads: the constructor starts a thread that reads the meter, the
// destructor ends it. One other thread may call AddStep and TakeNews, which do not block.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bfio::worker {

// Interface to a device's energy counter. Read by the energy monitor; implemented with NVML and by tests.
// Threads: used by one thread at a time.
class EnergyMeter {
 public:
  virtual ~EnergyMeter() = default;

  // The device's identifier, the same for every process that reads it.
  virtual const std::string& device() const = 0;
  // The longest time between two calls of Joules for which its results are correct; infinite if the device
  // counts by itself.
  virtual absl::Duration sampling() const = 0;
  // Energy since some moment in the past, in joules; less than before when the counter was reset in between.
  virtual absl::StatusOr<double> Joules() = 0;
};

// Joules and seconds of computing, of waiting in steps (barrier and gap), and of the rest.
struct EnergySums {
  double busy_j = 0, barrier_j = 0, parked_j = 0;
  double busy_s = 0, barrier_s = 0, parked_s = 0;
};

// Splits a device's energy. A device reports only the energy E of a window; how the window's time divides is
// known. As in the BF-IO paper, waiting draws the idle power:
//   barrier_j = P_idle * barrier_s, parked_j = P_idle * parked_s, busy_j = E - both
// P_idle is the smallest mean power of any window with a parked share of at least kParked. Until there is
// one, and where E is less than P_idle implies, E is divided in proportion to time. A collective that spins
// draws more than P_idle; the excess is attributed to busy_j. Pure. Threads: one. Units: joules, seconds,
// watts.
class EnergySplit {
 public:
  // Share of a window's time that must be parked for its power to count as idle power.
  static constexpr double kParked = 0.99;

  // Adds a window of `seconds` in which the device drew `joules`. If the times add up to more than the window
  // (steps are counted when they end), they are scaled down in proportion. Ignored unless all values are
  // finite and at least 0, and seconds above 0.
  void AddWindow(double joules, double seconds, double busy_s, double barrier_s);

  const EnergySums& sums() const { return sums_; }
  // Mean power of the last window.
  double watts() const { return watts_; }
  std::optional<double> idle_watts() const { return idle_watts_; }

 private:
  EnergySums sums_;
  double watts_ = 0;
  std::optional<double> idle_watts_;
};

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
