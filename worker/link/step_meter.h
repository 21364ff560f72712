// Cost and energy of a rank's steps, for its reports to the router.
//
// Purpose: keeps the fit of C, t_l and the prefill cost over the rank's whole life, epochs and streams
// notwithstanding, and puts it into a report when it has changed, every OnlineStepFit::kBlock steps; likewise
// the energy of the rank's device, where there is a meter. Threads: none; the step loop's.
#ifndef BFIO_WORKER_LINK_STEP_METER_H_
#define BFIO_WORKER_LINK_STEP_METER_H_

#include "common/cost/online_fit.h"
#include "worker/energy/energy_monitor.h"
#include "worker/link/messages.h"

namespace bfio::worker {

class StepMeter {
 public:
  // `energy` is borrowed and may be null.
  explicit StepMeter(EnergyMonitor* energy) : energy_(energy) {}

  // Takes in a step whose local part and barrier are over, and fills in the report's cost and energy if there
  // is news.
  void Take(StepReport& report);

 private:
  OnlineStepFit fit_;
  EnergyMonitor* const energy_;
  // The number of reported blocks.
  int64_t told_ = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_LINK_STEP_METER_H_
