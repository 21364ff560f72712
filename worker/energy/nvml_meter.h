// A GPU's energy from NVIDIA's management library (NVML), loaded at run time. Builds and runs without NVML;
// then there are no energy metrics. Uses the device's own counter if it has one
// (nvmlDeviceGetTotalEnergyConsumption: millijoules since the driver was loaded, Volta and later); otherwise
// samples the power, the instantaneous value where available, and integrates by trapezoids. Several processes
// may meter the same device. Threads: used by one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/energy/energy_monitor.h"

namespace bfio::worker {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

// `device`: a PCI bus id ("0000:17:00.0") or NVML's index of the device. NOT_FOUND: no library or no such
// device; UNIMPLEMENTED: the library lacks a function, or the device reports neither energy nor power;
// otherwise NVML's error.
absl::StatusOr<std::unique_ptr<EnergyMeter>> MakeNvmlMeter(absl::string_view device,
                                                           const std::string& library = kNvmlLibrary);

}  // namespace bfio::worker
