// What a worker sends, as domain types: checked and converted here, and nowhere else.
//
// Purpose: whatever a worker sends, what gets past these functions is in range and does not contradict
// itself. What is wrong with a measurement costs the measurement, not the worker's slot in the group. Held
// requests: held_request.h. Pure; any thread.
#ifndef BFIO_ROUTER_WORKER_LINK_FROM_WIRE_H_
#define BFIO_ROUTER_WORKER_LINK_FROM_WIRE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "bfio/v1/worker.pb.h"
#include "common/cost/batch_time.h"
#include "common/cost/online_fit.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// INVALID_ARGUMENT naming field, value and limit.
absl::StatusOr<WorkerHello> ToHello(const v1::Hello& hello);

EpochReady ToEpochReady(const v1::EpochReady& ready);

// INVALID_ARGUMENT when the packed fields contradict each other or are out of range.
absl::StatusOr<StepReport> ToStepReport(const v1::StepReport& report);

// Nothing when some value is no finite number of at least 0, or beyond what OnlineStepFit lets in.
std::optional<StepCostEstimate> ToCost(const v1::StepCost& cost);
// Nothing when some value is out of range, or a token costs nothing.
std::optional<BatchCost> ToBatchCost(const v1::BatchCost& cost);
// Nothing when the device has no name, or some value is no finite number of at least 0.
std::optional<EnergyReading> ToEnergy(const v1::Energy& energy);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_FROM_WIRE_H_
