// Converts the router's messages for workers to the wire. Pure; any thread.
#pragma once

#include "absl/types/span.h"
#include "bfio/v1/worker.pb.h"
#include "router/group/worker_messages.h"
#include "router/requests/request.h"

namespace bfio::router {

// REQUIRES, for all: `out` is empty.
void ToWire(const EpochOffer& epoch, v1::Epoch& out);
void ToWire(const PlanPart& plan, absl::Span<const Assignment> assignments, v1::Plan& out);
void ToWire(const Assignment& assignment, v1::Assignment& out);

}  // namespace bfio::router
