// What workers say that their steps cost and draw: checked, kept per worker, and the devices' energy summed.
//
// Purpose: the router believes a worker's figures as far as they are figures: what is no number, negative or
// absurd is left out, since figures are not worth a worker's place in the group. Owned by the decision
// thread; not thread-safe.
#ifndef BFIO_ROUTER_GROUP_WORKER_FIGURES_H_
#define BFIO_ROUTER_GROUP_WORKER_FIGURES_H_

#include <optional>
#include <vector>

#include "bfio/v1/admin.pb.h"
#include "bfio/v1/worker.pb.h"
#include "common/cost/online_fit.h"
#include "router/core/scheduler/worker_speeds.h"

namespace bfio::router {

struct WorkerFigures {
  std::optional<StepCostEstimate> cost;
  // The last it told.
  std::optional<v1::Energy> energy;
  // What plans reckon with.
  core::WorkerTime time;
  // What a mean request takes there (core::WorkerSpec::service_time).
  double service_time = 1;
};

// Nothing when some value is no finite number of at least 0, or beyond what OnlineStepFit lets in.
std::optional<StepCostEstimate> ConvertCost(const v1::StepCost& cost);
void FillCost(const StepCostEstimate& cost, v1::StepCost& out);

// Sums the energy of devices, of which each worker tells all it has seen since it began.
class EnergyBook {
 public:
  // Takes a reading of the worker with these `figures`, and keeps it there; `others` are all other workers'.
  // Of what has come since its last reading it counts its share: workers that tell of the same device share
  // it evenly. The first one counts nothing: it may reach back beyond this router's start. Nonsense is left
  // out.
  void Take(const v1::Energy& reading, WorkerFigures& figures,
            const std::vector<const WorkerFigures*>& others);

  // Nothing before any reading has come.
  const std::optional<v1::EnergyTotals>& totals() const { return totals_; }

 private:
  std::optional<v1::EnergyTotals> totals_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_WORKER_FIGURES_H_
