#include "worker/energy/energy_monitor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/clock.h"
#include "common/base/spdlog.h"

namespace bfio::worker {

EnergyMonitor::EnergyMonitor(std::unique_ptr<EnergyMeter> meter, absl::Duration window)
    : meter_(std::move(meter)), window_(window), thread_([this] { Run(); }) {}

EnergyMonitor::~EnergyMonitor() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

std::optional<EnergyReading> EnergyMonitor::TakeNews() {
  if (!news_.exchange(false, std::memory_order_acquire)) return std::nullopt;
  MutexLock lock(&mutex_);
  return reading_;
}

void EnergyMonitor::Run() {
  absl::StatusOr<double> joules = meter_->Joules();
  absl::Time end = MonotonicNow();
  EndWindow(end, joules);
  for (;;) {
    const absl::Time now = MonotonicNow();
    if (now >= end) end = now + window_;
    {
      MutexLock lock(&mutex_);
      if (!stop_) changed_.WaitWithTimeout(&mutex_, std::min(end - now, meter_->sampling()));
      if (stop_) return;
    }
    joules = meter_->Joules();
    const absl::Time read = MonotonicNow();
    if (read >= end || !joules.ok()) EndWindow(read, joules);
  }
}

void EnergyMonitor::EndWindow(absl::Time now, const absl::StatusOr<double>& joules) {
  const double busy_s = 1e-9 * static_cast<double>(busy_ns_.exchange(0, std::memory_order_relaxed));
  const double barrier_s = 1e-9 * static_cast<double>(barrier_ns_.exchange(0, std::memory_order_relaxed));
  const std::optional<double> before =
      std::exchange(start_joules_, joules.ok() ? std::optional<double>(*joules) : std::nullopt);
  const double seconds = absl::ToDoubleSeconds(now - std::exchange(start_, now));
  std::string trouble;
  if (!joules.ok()) {
    trouble = std::string(joules.status().message());
  } else if (!before) {
    return;
  } else if (*joules < *before || *joules - *before > kMaxWatts * seconds) {
    trouble = "its energy counter was reset";
  }
  if (!trouble.empty()) {
    if (!std::exchange(warned_, true)) {
      spdlog::warn("energy of {}: {}; the energy of this interval is not counted", meter_->device(), trouble);
    }
    return;
  }
  split_.AddWindow(*joules - *before, seconds, busy_s, barrier_s);
  {
    MutexLock lock(&mutex_);
    reading_ = {meter_->device(), split_.sums(), split_.watts(), split_.idle_watts()};
  }
  news_.store(true, std::memory_order_release);
}

void EnergySplit::AddWindow(double joules, double seconds, double busy_s, double barrier_s) {
  const auto amount = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!amount(joules) || !amount(seconds) || seconds == 0 || !amount(busy_s) || !amount(barrier_s)) return;
  const double over = std::max(1.0, (busy_s + barrier_s) / seconds);
  busy_s /= over, barrier_s /= over;
  const double parked_s = std::max(0.0, seconds - busy_s - barrier_s);
  watts_ = joules / seconds;
  if (parked_s >= kParked * seconds) idle_watts_ = std::min(watts_, idle_watts_.value_or(watts_));
  // In a window without work all energy is attributed to waiting and parked time.
  const double all_alike = joules / seconds;
  double idle = std::min(idle_watts_.value_or(all_alike), all_alike);
  if (busy_s == 0) idle = all_alike;
  const double barrier_j = idle * barrier_s, parked_j = idle * parked_s;
  sums_.barrier_j += barrier_j;
  sums_.parked_j += parked_j;
  sums_.busy_j += std::max(0.0, joules - barrier_j - parked_j);
  sums_.busy_s += busy_s;
  sums_.barrier_s += barrier_s;
  sums_.parked_s += parked_s;
}

}  // namespace bfio::worker
