#include "worker/energy/energy_split.h"

#include <algorithm>
#include <cmath>

namespace bfio::worker {

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
