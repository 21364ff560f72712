// Energy of barrier-synchronised workers, by a power law in the relative load or in the utilisation.
//
// Purpose: the energy column of simulations and reports. Pure. Units: watts, seconds, joules.
#ifndef BFIO_TOOLS_SIM_RUN_ENERGY_H_
#define BFIO_TOOLS_SIM_RUN_ENERGY_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/types/span.h"

namespace bfio::sim {

// P = idle + (peak - idle) * ratio^gamma, ratio = L_g / max_g L_g of the step, clipped to [0, 1].
//
// Defaults: 100 W and 400 W of an A100 and exponent 0.7, as in the code that generated the BF-IO paper's
// table (the paper's text uses the model-FLOPs utilisation for the ratio; the code uses the load). They are
// not measured here.
struct PowerModel {
  double idle_w = 100;
  double peak_w = 400;
  double gamma = 0.7;

  double Watts(double ratio) const {
    return idle_w + (peak_w - idle_w) * std::pow(std::clamp(ratio, 0.0, 1.0), gamma);
  }

  // Energy of one step of the whole group. When no worker has any load, every worker draws idle power.
  double StepJoules(absl::Span<const int64_t> load_tokens, double step_s) const {
    int64_t max_load = 0;
    for (const int64_t load : load_tokens) max_load = std::max(max_load, load);
    double watts = 0;
    for (const int64_t load : load_tokens) {
      watts += max_load == 0 ? idle_w : Watts(static_cast<double>(load) / static_cast<double>(max_load));
    }
    return watts * step_s;
  }

  // An alternative reading of the paper's text (section 6, "workers waiting at the barrier operate near
  // P_idle"): each worker draws peak power while it computes, and idle power for the rest of the step.
  double BusyJoules(absl::Span<const double> local_s, double step_s) const {
    double joules = 0;
    for (const double local : local_s) {
      const double busy = std::min(local, step_s);
      joules += peak_w * busy + idle_w * (step_s - busy);
    }
    return joules;
  }
};

// Energy by model-FLOPs utilisation (MFU), the paper's equations (10), (11) and (56) to (58): mfu_g = tokens
// per second * 6 N / FLOPs_peak, ratio = mfu_g / mfu_sat in the power law above.
struct MfuModel {
  // The paper states no number of parameters N; this is Llama-3-8B's. Peak FLOP/s of an A100 in bf16.
  double parameters = 8.03e9;
  double peak_flops = 312e12;
  double saturation = 0.45;

  // `tokens[g]`: tokens that worker g generated in the step.
  double StepJoules(const PowerModel& power, absl::Span<const int64_t> tokens, double step_s) const {
    double watts = 0;
    for (const int64_t made : tokens) {
      const double mfu = static_cast<double>(made) / step_s * 6 * parameters / peak_flops;
      watts += power.Watts(mfu / saturation);
    }
    return watts * step_s;
  }
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_ENERGY_H_
