// Workers' step logs, and the fit of a step's cost to them.
#include <cmath>

#include "tests/fuzz/fuzz.h"
#include "tools/sim/calibrate/calibration.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bfio::sim::StepRows rows;
  if (!bfio::sim::ParseStepRows(bfio::fuzz::Text(data, size), "fuzz", rows).ok()) return 0;
  for (const auto& sample : rows.samples) {
    bfio::fuzz::Check(sample.worker >= 0 && static_cast<size_t>(sample.worker) < rows.workers.size(),
                      "a row's worker has a name");
  }
  const auto calibration = bfio::sim::Calibrate(rows);
  if (!calibration.ok()) return 0;
  bfio::fuzz::Check(std::isfinite((*calibration)["c_s"]["value"].get<double>()), "the fit is a number");
  (void)calibration->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return 0;
}
