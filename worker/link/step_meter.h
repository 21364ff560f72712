// Cost and energy of a rank's steps, for its reports to the router.
//
// Purpose: keeps the fits of C, t_l and the prefill cost, and of the batches' cost by their tokens, over the
// rank's lifetime, independently of epochs and streams, and puts them into a report when they have changed,
// every OnlineStepFit::kBlock steps. If there is a meter, does the same for the energy of the rank's device.
// Threads: the step loop's.
#pragma once

#include <cstdint>
#include <optional>

#include "common/cost/group_fit.h"
#include "common/cost/online_fit.h"
#include "worker/energy/energy_monitor.h"
#include "worker/link/messages.h"

namespace bfio::worker {

class StepMeter {
 public:
  // `energy` is borrowed and may be null.
  explicit StepMeter(EnergyMonitor* energy) : energy_(energy) {}

  // Adds a step whose local part and barrier are over, and fills in the report's cost and energy if they have
  // changed.
  void Take(StepReport& report);
  // Absent until the cost is known.
  std::optional<BatchCost> batch_cost() const {
    return batches_.cost() ? std::optional(batches_.cost()->batch) : std::nullopt;
  }

 private:
  OnlineStepFit fit_;
  GroupFit batches_{{.prices = false}};
  EnergyMonitor* const energy_;
  int64_t reported_blocks_ = 0;
};

}  // namespace bfio::worker
