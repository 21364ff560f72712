// Domain types and the wire's, converted. Of a worker's messages this is the only check: the results are in
// range and do not contradict themselves, whatever a worker sends. An invalid measurement is dropped; the
// worker stays a member. Held requests: held_request.h. Pure; any thread.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bfio/v1/worker.pb.h"
#include "common/cost/batch_time.h"
#include "common/cost/online_fit.h"
#include "router/group/worker_messages.h"
#include "router/requests/request.h"

namespace bfio::router {

// INVALID_ARGUMENT naming field, value and limit.
absl::StatusOr<WorkerHello> ToHello(const v1::Hello& hello);

// Bound of WorkerHello::slots.
inline constexpr int32_t kMostSlots = 65536;

// `slots`: the worker's. A list of requests that is longer is INVALID_ARGUMENT, and so are packed fields that
// contradict each other or are out of range.
absl::StatusOr<EpochReady> ToEpochReady(const v1::EpochReady& ready, int32_t slots = kMostSlots);
absl::StatusOr<StepReport> ToStepReport(const v1::StepReport& report, int32_t slots = kMostSlots);

// Empty when a value is not a finite number of at least 0, or exceeds what OnlineStepFit accepts.
std::optional<StepCostEstimate> ToCost(const v1::StepCost& cost);
// Empty when a value is out of range, or a token has no cost.
std::optional<BatchCost> ToBatchCost(const v1::BatchCost& cost);
// Empty when a value is out of range.
std::optional<BatchLoad> ToBatch(const v1::Batch& batch);
// Empty when the device has no name, or a value is not a finite number of at least 0.
std::optional<EnergyReading> ToEnergy(const v1::Energy& energy);

// The router's messages for workers. REQUIRES, for all: `out` is empty.
void ToWire(const EpochOffer& epoch, v1::Epoch& out);
void ToWire(const PlanPart& plan, absl::Span<const Assignment> assignments, v1::Plan& out);
void ToWire(const Assignment& assignment, v1::Assignment& out);

}  // namespace bfio::router
