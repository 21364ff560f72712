#include "worker/link/step_meter.h"

namespace bfio::worker {

void StepMeter::Take(StepReport& report) {
  fit_.Add(report.output.load_tokens, report.output.prefill_tokens,
           1e-9 * static_cast<double>(report.local_ns));
  batches_.Add(report.output.batch, 1e-9 * static_cast<double>(report.local_ns));
  if (fit_.blocks() != reported_blocks_) {
    reported_blocks_ = fit_.blocks();
    report.cost = fit_.estimate();
    report.batch_cost = batch_cost();
  }
  if (energy_ == nullptr) return;
  energy_->AddStep(report.local_ns, report.barrier_wait_ns + report.gap_ns.value_or(0));
  report.energy = energy_->TakeNews();
}

}  // namespace bfio::worker
