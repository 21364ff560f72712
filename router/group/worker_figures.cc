#include "router/group/worker_figures.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace bfio::router {
namespace {

constexpr size_t kMaxDeviceBytes = 128;
// A megawatt over a century.
constexpr double kMaxJoules = 4e15;

// The negated comparison also catches NaN.
bool IsAmount(double value, double most) {
  return value >= 0 && value <= most;
}

// False when it is there and no figure.
bool Convert(bool present, const v1::FittedValue& from, std::optional<FittedValue>& to) {
  if (!present) return true;
  to = FittedValue{from.value(), from.standard_error()};
  return IsAmount(from.value(), OnlineStepFit::kMaxSeconds) &&
         IsAmount(from.standard_error(), OnlineStepFit::kMaxSeconds);
}

void Fill(const std::optional<FittedValue>& from, v1::FittedValue* (v1::StepCost::*field)(),
          v1::StepCost& to) {
  if (!from) return;
  v1::FittedValue* value = (to.*field)();
  value->set_value(from->value);
  value->set_standard_error(from->standard_error);
}

bool IsEnergy(const v1::Energy& energy) {
  const auto all = {energy.busy_j(),    energy.barrier_j(), energy.parked_j(), energy.busy_s(),
                    energy.barrier_s(), energy.parked_s(),  energy.watts(),    energy.idle_watts()};
  return !energy.device().empty() && energy.device().size() <= kMaxDeviceBytes &&
         std::all_of(all.begin(), all.end(), [](double value) { return IsAmount(value, kMaxJoules); });
}

}  // namespace

std::optional<StepCostEstimate> ConvertCost(const v1::StepCost& cost) {
  constexpr uint64_t kMaxSteps = uint64_t{1} << 62;
  StepCostEstimate out;
  const bool good = Convert(cost.has_c_s(), cost.c_s(), out.c) &&
                    Convert(cost.has_tl_s_per_token(), cost.tl_s_per_token(), out.tl) &&
                    Convert(cost.has_prefill_s_per_token(), cost.prefill_s_per_token(), out.prefill) &&
                    IsAmount(cost.residual_s(), OnlineStepFit::kMaxSeconds) && cost.steps() <= kMaxSteps &&
                    cost.outliers() <= kMaxSteps;
  if (!good) return std::nullopt;
  out.residual_s = cost.residual_s();
  out.steps = static_cast<int64_t>(cost.steps());
  out.outliers = static_cast<int64_t>(cost.outliers());
  return out;
}

void FillCost(const StepCostEstimate& cost, v1::StepCost& out) {
  Fill(cost.c, &v1::StepCost::mutable_c_s, out);
  Fill(cost.tl, &v1::StepCost::mutable_tl_s_per_token, out);
  Fill(cost.prefill, &v1::StepCost::mutable_prefill_s_per_token, out);
  out.set_residual_s(cost.residual_s);
  out.set_steps(static_cast<uint64_t>(cost.steps));
  out.set_outliers(static_cast<uint64_t>(cost.outliers));
}

void EnergyBook::Take(const v1::Energy& reading, WorkerFigures& figures,
                      const std::vector<const WorkerFigures*>& others) {
  if (!IsEnergy(reading)) return;
  const std::optional<v1::Energy> before = std::exchange(figures.energy, reading);
  if (!totals_) totals_.emplace();
  // A device of another name, or sums that have become less, are another beginning.
  if (!before || before->device() != reading.device()) return;
  const double busy = reading.busy_j() - before->busy_j(),
               barrier = reading.barrier_j() - before->barrier_j(),
               parked = reading.parked_j() - before->parked_j();
  if (busy < 0 || barrier < 0 || parked < 0) return;
  const auto sharers = 1 + std::count_if(others.begin(), others.end(), [&](const WorkerFigures* other) {
                         return other->energy && other->energy->device() == reading.device();
                       });
  const double share = 1 / static_cast<double>(sharers);
  totals_->set_busy_j(totals_->busy_j() + share * busy);
  totals_->set_barrier_j(totals_->barrier_j() + share * barrier);
  totals_->set_parked_j(totals_->parked_j() + share * parked);
}

}  // namespace bfio::router
