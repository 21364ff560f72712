// Which faults a chaos run injects, and when.
//
// Purpose: the whole schedule is drawn from a seed before the run begins, so that it can be printed and
// repeated. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio::chaos {

enum class FaultKind {
  kKillWorker,       // SIGKILL; it is restarted after `length`
  kPauseShort,       // SIGSTOP for less than the step timeout
  kPauseLong,        // SIGSTOP for longer
  kSlowWorker,       // stopped half of the time
  kCutLink,          // the connection to the router is reset
  kStallLink,        // half-open: nothing passes in either direction, nothing is closed
  kHalfCloseLink,    // one direction of the connection is shut down
  kDelayLink,        // data on the link is delayed
  kPartitionPeers,   // `worker` and rank 0 do not reach each other; the router reaches both
  kIsolateWorker,    // a worker reaches no other process
  kKillRouter,       // SIGKILL; it is restarted after `length`
  kFullDisk,         // no space left for the logs
  kJumpClock,        // the wall clock of a worker's or the router's machine is set (JumpOf)
  kBlockedLog,       // no process reads the standard error of the router or of a worker
  kSlowEtcd,         // etcd's replies to the leader are delayed
  kPoisonedRequest,  // requests whose logits are not finite
  kWrongModel,       // a worker with another model attaches
  kBarrierIntruder,  // unauthenticated connections to the workers' barriers
  kGreedyPeer,       // a tenant, a worker and strangers at each port take all that the protocols allow
};

absl::string_view NameOf(FaultKind kind);
// Whether the fault alone must not cause the loss of a rank or a pause of a stream.
bool IsHarmless(FaultKind kind);
// For a harmless fault: upper bound of what the router may grow by while it lasts, in KiB; absent: none.
std::optional<int64_t> MemoryBoundKib(FaultKind kind);
// Every kind, in the order of the enumeration.
const std::vector<FaultKind>& AllFaults();

struct Fault {
  // Time since the start of the run.
  absl::Duration at;
  FaultKind kind = FaultKind::kKillWorker;
  int worker = 0;
  int peer = 0;
  absl::Duration length;
  int64_t detail = 0;
};

struct ScheduleOptions {
  uint64_t seed = 1;
  int workers = 8;
  // Faults begin between `first` and `last`, `mean_gap` apart on average (exponential).
  absl::Duration first, last, mean_gap;
  // Unit of pauses and stalls.
  absl::Duration step_timeout;
  // The kinds that are possible on this machine.
  std::vector<FaultKind> kinds;
};

// For kJumpClock: whether it is the router's clock (every third) or the worker's, and the change: a second to
// a day, in either direction.
struct ClockJump {
  bool router = false;
  absl::Duration by;
};
ClockJump JumpOf(const Fault& fault);

// For kBlockedLog: whether it is the router's log (every second fault) or the worker's.
bool IsRoutersLog(const Fault& fault);

std::vector<Fault> DrawSchedule(const ScheduleOptions& options);

// One line.
std::string Describe(const Fault& fault);

}  // namespace bfio::chaos
