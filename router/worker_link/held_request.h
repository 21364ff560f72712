// Requests that outlive a router: the note that travels with their assignment, and what a worker hands back.
//
// Purpose: one place for both directions, so that what is written is what is read. The note is a
// GenerateRequest without its prompt (the assignment has that) and with the seed that the request's tokens
// were drawn with. Workers are not trusted to hand back what they got: everything is checked as at the door.
// Pure functions; any thread.
#ifndef BFIO_ROUTER_WORKER_LINK_HELD_REQUEST_H_
#define BFIO_ROUTER_WORKER_LINK_HELD_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bfio/v1/inference.pb.h"
#include "bfio/v1/worker.pb.h"
#include "router/app/options.h"

namespace bfio::router {

// The seed of a request that names none: the same in every router's life, so that a request that is started
// again makes the same tokens.
uint64_t SeedOfName(absl::string_view request_id);

// Assignment.origin. REQUIRES: the request is resumable and has a seed.
std::string OriginOf(const v1::GenerateRequest& request);

struct HeldState {
  uint64_t handle = 0;
  // As the client sent it: the prompt without what was delivered.
  v1::GenerateRequest request;
  // All of its tokens, from index 0.
  std::vector<uint32_t> tokens;
  // Index of the first token of the present placement.
  uint32_t first_index = 0;
  std::optional<v1::FinishReason> ended;
};
// INVALID_ARGUMENT, saying what, when the worker's word contradicts itself or is beyond a limit.
absl::StatusOr<HeldState> FromHeld(const v1::HeldRequest& held, const RequestLimits& limits);

// Whether a client that comes back with `resume` is the one that sent `request`: the tenant and the token are
// the same. Takes the same time wherever tokens of equal length differ.
bool MayResume(const v1::GenerateRequest& request, const v1::GenerateRequest& resume);
// The same for who wants it aborted; `tenant` is the caller's, nothing where callers say their own.
bool MayAbort(const v1::GenerateRequest& request, const v1::AbortRequest& abort,
              const std::optional<std::string>& tenant);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_HELD_REQUEST_H_
