// A GPU's energy, from NVIDIA's management library, which is looked for when the program runs.
//
// Purpose: builds and runs without NVML; where it is not there, neither are the metrics. Prefers the device's
// own counter (nvmlDeviceGetTotalEnergyConsumption: millijoules since the driver was loaded, Volta and
// later); a device without one has its power sampled, the instantaneous one where available, and integrated
// by trapezoids. Several processes may meter the same device. Threads: one at a time.
#ifndef BFIO_WORKER_ENERGY_NVML_METER_H_
#define BFIO_WORKER_ENERGY_NVML_METER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/energy/energy_meter.h"

namespace bfio::worker {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

// `device`: a PCI bus id ("0000:17:00.0") or NVML's index of the device. NOT_FOUND when there is no library
// or no such device; UNIMPLEMENTED when the library lacks a function, or the device counts neither energy nor
// power; what NVML says otherwise.
absl::StatusOr<std::unique_ptr<EnergyMeter>> MakeNvmlMeter(absl::string_view device,
                                                           const std::string& library = kNvmlLibrary);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENERGY_NVML_METER_H_
