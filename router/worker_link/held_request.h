// Requests that survive their router: the record sent with their assignment, and how a worker returns it. One
// place for both directions, so that they match. The record (Assignment.origin) is a GenerateRequest with the
// seed of the request's sampling and without its prompt, which the assignment contains. Workers may return
// something else than they received, so every field is checked as if a client had sent it. Pure; any thread.
#ifndef BFIO_ROUTER_WORKER_LINK_HELD_REQUEST_H_
#define BFIO_ROUTER_WORKER_LINK_HELD_REQUEST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "bfio/v1/inference.pb.h"
#include "bfio/v1/worker.pb.h"
#include "router/requests/limits.h"
#include "router/requests/request.h"

namespace bfio::router {

void ToWire(const Sampling& sampling, uint64_t seed, v1::SamplingParams& out);

void ToWire(const LogprobsView& from, v1::Logprobs& out);
// INVALID_ARGUMENT when the message contradicts itself.
absl::Status Append(const v1::Logprobs& from, Logprobs& to);

// Assignment.origin. REQUIRES: the request is resumable.
std::string OriginOf(const ClientRequest& request, uint64_t seed);

// INVALID_ARGUMENT, naming the field, when the worker's message contradicts itself or exceeds a limit.
absl::StatusOr<HeldRequest> FromHeld(const v1::HeldRequest& held, const RequestLimits& limits);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_HELD_REQUEST_H_
