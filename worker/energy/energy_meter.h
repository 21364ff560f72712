// A device's energy counter behind one interface.
//
// Purpose: what the monitor reads, from NVML or from a test. Threads: one at a time.
#ifndef BFIO_WORKER_ENERGY_ENERGY_METER_H_
#define BFIO_WORKER_ENERGY_ENERGY_METER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace bfio::worker {

class EnergyMeter {
 public:
  virtual ~EnergyMeter() = default;

  // The device's own name, the same for every reader.
  virtual const std::string& device() const = 0;
  // How often Joules must be called at least for its answers to be right; infinite where the device counts by
  // itself.
  virtual absl::Duration sampling() const = 0;
  // Since some moment in the past; smaller than before when the counter was reset in between.
  virtual absl::StatusOr<double> Joules() = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENERGY_ENERGY_METER_H_
