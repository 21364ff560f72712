// The commands that a group returns in answer to its events: router/group does no I/O. Every event appends
// commands in the order in which they must be carried out, and the decision thread carries them out
// (router/app/decision_thread.h). Spans borrow from the event that caused the command. So carry the commands
// out before that event is destroyed, and before the next event: the groups then read state of the
// RequestBook that these commands change. Plain data. Threads: any.
#pragma once

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
// Its placements concern the requests too.
struct SendPlan {
  MemberId to = 0;
  PlanPart plan;
};
// A line for the member's log.
struct SendNotice {
  MemberId to = 0;
  std::string text;
};
// Notifies a drained member that it may exit.
struct SendShutdown {
  MemberId to = 0;
  std::string reason;
};
// The group has removed the member. OK: it was released after draining.
struct CloseMember {
  MemberId to = 0;
  absl::Status status;
};

// --- about requests (router/requests) ---

struct GeneratedTokens {
  core::RequestId id = 0;
  absl::Span<const uint32_t> tokens;
  LogprobsView logprobs;
  absl::Span<const PassedPtr> messages;
};
struct RequestFinished {
  core::RequestId id = 0;
  FinishReason reason = FinishReason::kLength;
  // As FinishedRequest::generated.
  std::optional<uint32_t> generated;
};
// A worker refused the request. RESOURCE_EXHAUSTED: it is back in the pool.
struct RequestRejected {
  core::RequestId id = 0;
  absl::Status status;
};
// A worker preempted the request because it ran out of KV memory, or has computed its prompt for another one;
// the scheduler has removed the request.
struct RequestPreempted {
  core::RequestId id = 0;
  // Null: preempted.
  HandOffPtr hand_off = nullptr;
};
// The request's worker is gone; the scheduler has removed the request. Youngest first, so that the oldest
// ends up in front when each is put at the front of the pool.
struct RequestLost {
  core::RequestId id = 0;
};

// --- about the group ---

struct EpochOpened {
  core::GroupIndex group = 0;
};
struct EpochClosed {
  core::GroupIndex group = 0;
};
// A complete step, for subscribers.
struct StepDone {
  std::shared_ptr<const StepSummary> summary;
};

// A reading of a member's energy meter (energy_book.h).
struct EnergyReported {
  MemberId member = 0;
  EnergyReading reading;
};
// A log line. The text is complete by itself; the fields repeat what it is about, for structured logs.
struct LogLine {
  enum class Level { kDebug, kInfo, kWarning };
  Level level = Level::kInfo;
  std::string text;
  // What the line is about; empty or 0: not about one.
  std::string group;
  std::string worker;
  uint64_t epoch = 0;
};

using Command = std::variant<SendEpoch, SendPlan, SendNotice, SendShutdown, CloseMember, GeneratedTokens,
                             RequestFinished, RequestRejected, RequestPreempted, RequestLost, EpochOpened,
                             EpochClosed, StepDone, EnergyReported, LogLine>;
using Commands = std::vector<Command>;

}  // namespace bfio::router
