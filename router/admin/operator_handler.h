// The interface to the state behind the admin API and the live page. The boundary between the operators' edge
// and the router's decision thread. router/app implements it. Threads: every method may be called from any
// thread and never blocks; `done` runs on the decision thread and must not block either. A method that
// returns an error (RESOURCE_EXHAUSTED: too many calls wait; UNAVAILABLE: the router is shutting down) does
// not call `done`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/admin/router_state.h"

namespace bfio::router {

struct PolicyChange {
  std::string name;
  // Unset: no change. Within 0..500.
  std::optional<int32_t> horizon;
  // Empty: no change.
  std::string objective;
};

class OperatorHandler {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  virtual ~OperatorHandler() = default;

  virtual absl::Status State(absl::AnyInvocable<void(absl::StatusOr<RouterState>) &&> done) = 0;
  // `done` gets NOT_FOUND for an unknown worker.
  virtual absl::Status DrainWorker(std::string worker_id, Done done) = 0;
  // `done` gets NOT_FOUND for an unknown worker, FAILED_PRECONDITION for one that is not draining, or that
  // itself requested to leave.
  virtual absl::Status UndrainWorker(std::string worker_id, Done done) = 0;
  // `done` gets INVALID_ARGUMENT for an unknown name or setting.
  virtual absl::Status SetPolicy(PolicyChange change, Done done) = 0;

  // Time since the decision thread last looked at its events. Does not wait for that thread.
  virtual absl::Duration SinceLastIteration() const = 0;
  // A stop has been requested: no new request is accepted, accepted ones may still run. Does not wait for the
  // decision thread.
  virtual bool Stopping() const = 0;
};

}  // namespace bfio::router
