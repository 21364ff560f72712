// What a group wants done: the answers to its events.
//
// Purpose: router/group does no I/O. Every event appends commands, in the order in which they have to be
// carried out; the decision thread carries them out (router/app/decision_thread.h). Spans borrow from the
// event that caused the command: carry commands out before the event goes, and before the next event, whose
// groups ask the RequestBook for what these commands change. Plain data. Threads: any.
#ifndef BFIO_ROUTER_GROUP_COMMANDS_H_
#define BFIO_ROUTER_GROUP_COMMANDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "router/core/model/request.h"
#include "router/group/step_statistics.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// --- to workers ---

struct SendEpoch {
  MemberId to = 0;
  EpochOffer epoch;
};
// Directly before it come the placements of this part, each as a RequestPlaced.
struct SendPlan {
  MemberId to = 0;
  PlanPart plan;
};
// For the member's log.
struct SendNotice {
  MemberId to = 0;
  std::string text;
};
// A drained member may end.
struct SendShutdown {
  MemberId to = 0;
  std::string reason;
};
// The group has forgotten the member; OK: it was released.
struct CloseMember {
  MemberId to = 0;
  absl::Status status;
};

// --- about requests (router/requests) ---

struct TokensMade {
  core::RequestId id = 0;
  absl::Span<const uint32_t> tokens;
};
struct RequestFinished {
  core::RequestId id = 0;
  FinishReason reason = FinishReason::kLength;
};
// A worker refused it. RESOURCE_EXHAUSTED: it is back in the pool.
struct RequestRejected {
  core::RequestId id = 0;
  absl::Status status;
};
// A worker took it out for want of KV; the scheduler has forgotten it.
struct RequestPreempted {
  core::RequestId id = 0;
};
// Its worker is gone; the scheduler has forgotten it. In an order that leaves the oldest at the pool's front
// when each is put there.
struct RequestLost {
  core::RequestId id = 0;
};
struct RequestPlaced {
  core::RequestId id = 0;
  core::WorkerIndex rank = 0;
  int64_t wait_steps = 0;
  // The number of the model that it goes on with (core::OpenEpoch).
  uint32_t model = 0;
};

// --- about the group ---

struct EpochOpened {
  core::GroupIndex group = 0;
};
struct EpochClosed {
  core::GroupIndex group = 0;
};
// A complete step, for watchers.
struct StepDone {
  std::shared_ptr<const StepSummary> summary;
};

// What a member's device has drawn (energy_book.h).
struct EnergyReported {
  MemberId member = 0;
  EnergyReading reading;
};
// For the log: the text says all; what it is about stands beside it once more, for machines.
struct LogLine {
  enum class Level { kDebug, kInfo, kWarning };
  Level level = Level::kInfo;
  std::string text;
  // Empty and 0: of none.
  std::string group;
  std::string worker;
  uint64_t epoch = 0;
};

using Command = std::variant<SendEpoch, SendPlan, SendNotice, SendShutdown, CloseMember, TokensMade,
                             RequestFinished, RequestRejected, RequestPreempted, RequestLost, RequestPlaced,
                             EpochOpened, EpochClosed, StepDone, EnergyReported, LogLine>;
using Commands = std::vector<Command>;

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_COMMANDS_H_
