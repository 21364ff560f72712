// Interface to a device's energy counter.
//
// Purpose: read by the energy monitor; implemented with NVML and by tests. Threads: used by one thread at a
// time.
#ifndef BFIO_WORKER_ENERGY_ENERGY_METER_H_
#define BFIO_WORKER_ENERGY_ENERGY_METER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace bfio::worker {

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

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENERGY_ENERGY_METER_H_
