// Requests that survive their router: the record sent with their assignment, and how a worker returns it. One
// place for both directions, so that they match. The record (Assignment.origin) is a GenerateRequest with the
// seed of the request's sampling and without its prompt, which the assignment contains. Its resume_ticket is
// the router's signature, if the router has keys: a worker returns only what some router gave to that worker.
// What the signature does not cover are the tokens, about which a worker is believed in its reports too.
// Every field is checked as if a client had sent it. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "bfio/v1/inference.pb.h"
#include "bfio/v1/worker.pb.h"
#include "common/auth/ticket_keys.h"
#include "router/requests/limits.h"
#include "router/requests/request.h"

namespace bfio::router {

void ToWire(const Sampling& sampling, uint64_t seed, v1::SamplingParams& out);

void ToWire(const LogprobsView& from, v1::Logprobs& out);
// INVALID_ARGUMENT when the message contradicts itself.
absl::Status Append(const v1::Logprobs& from, Logprobs& to);

// Assignment.origin. REQUIRES: the request is resumable.
std::string OriginOf(const ClientRequest& request, uint64_t seed);

// Signs the origin for that worker, under the handle and the lengths of the assignment. Times are by the wall
// clock; a signature is valid for kOriginLife, beyond which no request runs.
inline constexpr absl::Duration kOriginLife = absl::Hours(24);
void SignOrigin(const TicketKeys& keys, absl::string_view worker_id, absl::Time now, v1::Assignment& to);
// Whether one of these keys has signed this very assignment for that worker.
bool OriginIsProven(const TicketKeys& keys, absl::string_view worker_id, absl::Time now,
                    const v1::Assignment& from);

// INVALID_ARGUMENT, naming the field, when the worker's message contradicts itself or exceeds a limit.
absl::StatusOr<HeldRequest> FromHeld(const v1::HeldRequest& held, const RequestLimits& limits);

}  // namespace bfio::router
