// Requests that outlive a router: the note that travels with their assignment, and what a worker hands back.
//
// Purpose: one place for both directions, so that what is written is what is read. The note is a
// GenerateRequest without its prompt (the assignment has that) and with the seed that the request's tokens
// are drawn with. Workers are not trusted to hand back what they got: everything is checked as if a client
// had sent it. Pure; any thread.
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

// Assignment.origin. REQUIRES: the request is resumable.
std::string OriginOf(const ClientRequest& request, uint64_t seed);

// INVALID_ARGUMENT, saying what, when the worker's message contradicts itself or is beyond a limit.
absl::StatusOr<HeldRequest> FromHeld(const v1::HeldRequest& held, const RequestLimits& limits);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_HELD_REQUEST_H_
