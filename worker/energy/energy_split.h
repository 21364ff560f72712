// Splits a device's energy among computing, waiting in steps, and the rest.
//
// Purpose: a device reports only the energy of a window. How the window's time divides is known: `busy`
// computing, `barrier` waiting in steps (barrier and gap), the rest parked. As in the BF-IO paper, waiting
// draws the idle power:
//
//   barrier_j = P_idle * barrier_s, parked_j = P_idle * parked_s, busy_j = E - both
//
// P_idle is the smallest mean power of any window with a parked share of at least kParked. Until there is
// one, and where E is less than P_idle implies, E is divided in proportion to time. A collective that spins
// draws more than P_idle; the excess is attributed to busy_j. Pure. Threads: none. Units: joules, seconds,
// watts.
#ifndef BFIO_WORKER_ENERGY_ENERGY_SPLIT_H_
#define BFIO_WORKER_ENERGY_ENERGY_SPLIT_H_

#include <optional>

namespace bfio::worker {

struct EnergySums {
  double busy_j = 0, barrier_j = 0, parked_j = 0;
  double busy_s = 0, barrier_s = 0, parked_s = 0;
};

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

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENERGY_ENERGY_SPLIT_H_
