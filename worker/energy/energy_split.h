// A device's energy, split into what steps used, what their waiting used, and the rest.
//
// Purpose: a device reports only the energy of a window. The window's time is known: `busy` computing,
// `barrier` waiting in steps (barrier and gap), the rest parked. As in the BF-IO paper,
// waiting draws the power with nothing to do:
//
//   barrier_j = P_idle * barrier_s, parked_j = P_idle * parked_s, busy_j = E - both
//
// P_idle is the least mean power of any window of at least kParked parked time. Until there is one, and where
// E is less than P_idle says, E is split by time. A collective that spins draws more than P_idle: its share
// is then busy_j's. Pure. Threads: none. Joules, seconds, watts.
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
  // Share of a window's time that must be parked for its power to be that of idling.
  static constexpr double kParked = 0.99;

  // A window of `seconds` in which `joules` were drawn. Times that add up to more than the window (steps are
  // counted when they end) are shortened in proportion. Ignored unless finite, at least 0, and seconds above
  // 0.
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
