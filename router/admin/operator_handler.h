// The state behind the admin API and the live page, as they see it.
//
// Purpose: the line between the operators' edge and the router's decision thread. router/app implements it.
// Threads: every method may be called from any thread and never blocks; `done` runs on the decision thread
// and must not block either. A method that returns an error (RESOURCE_EXHAUSTED: too much waits; UNAVAILABLE:
// the router is shutting down) does not call `done`.
#ifndef BFIO_ROUTER_ADMIN_OPERATOR_HANDLER_H_
#define BFIO_ROUTER_ADMIN_OPERATOR_HANDLER_H_

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
  // Kept when unset; within 0..500.
  std::optional<int32_t> horizon;
  // Kept when empty.
  std::string objective;
};

class OperatorHandler {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  virtual ~OperatorHandler() = default;

  virtual absl::Status State(absl::AnyInvocable<void(absl::StatusOr<RouterState>) &&> done) = 0;
  // `done` gets NOT_FOUND for a worker that is not there.
  virtual absl::Status DrainWorker(std::string worker_id, Done done) = 0;
  // `done` gets NOT_FOUND for a worker that is not there, FAILED_PRECONDITION for one that is not drained or
  // asked to leave itself.
  virtual absl::Status UndrainWorker(std::string worker_id, Done done) = 0;
  // `done` gets INVALID_ARGUMENT for an unknown name or setting.
  virtual absl::Status SetPolicy(PolicyChange change, Done done) = 0;

  // How long the decision thread has not turned to its events. Asks nothing of it.
  virtual absl::Duration SinceTurn() const = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_OPERATOR_HANDLER_H_
