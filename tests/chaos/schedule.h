// Which faults a chaos run injects, and when.
//
// Purpose: the whole schedule is drawn from a seed before the run begins, so that it can be printed and
// repeated. Pure.
#ifndef BFIO_TESTS_CHAOS_SCHEDULE_H_
#define BFIO_TESTS_CHAOS_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio::chaos {

enum class FaultKind {
  kKillWorker,         // SIGKILL; it comes back after `length`
  kPauseShort,         // SIGSTOP for less than the step timeout
  kPauseLong,          // SIGSTOP for longer
  kSlowWorker,         // stopped half of the time
  kCutLink,            // the connection to the router is reset
  kStallLink,          // half-open: nothing comes through either way, nothing is closed
  kHalfCloseLink,      // one direction of the connection is shut down
  kDelayLink,          // what goes over the link comes late
  kPartitionPeers,     // `worker` and rank 0 do not reach each other; the router reaches both
  kIsolateWorker,      // a worker reaches nobody
  kKillRouter,         // SIGKILL; it comes back after `length`
  kFullDisk,           // no room for the logs
  kJumpClock,          // the wall clock of a worker's or the router's machine is set, by JumpOf
  kMisbehavingWorker,  // a ninth worker joins and breaks the protocol in the way `detail`
  kDuplicateReport,    // one that sends its reports twice, or in the wrong order
  kBlockedLog,         // nobody reads the standard error of the router or of a worker
  kSlowEtcd,           // etcd's replies to the leader come late
  kPoisonedRequest,    // requests without finite logits
  kWrongModel,         // a worker with another model attaches
  kBarrierIntruder,    // connections to the workers' barriers that do not prove that they belong there
  kFlood,              // connections and calls without a token
};

absl::string_view NameOf(FaultKind kind);
// It promises that the group loses no rank, and that no stream stands still, through it alone.
bool IsHarmless(FaultKind kind);
// Every kind, in the order of the enumeration.
const std::vector<FaultKind>& AllFaults();

struct Fault {
  // From the start of the run.
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
  // Faults come between `first` and `last`, `mean_gap` apart on average (exponential).
  absl::Duration first, last, mean_gap;
  // What pauses and stalls are measured against.
  absl::Duration step_timeout;
  // Those that are possible here.
  std::vector<FaultKind> kinds;
};

// Whose clock, and by how much, of kJumpClock: a second to a day, either way; every third is the router's.
struct ClockJump {
  bool router = false;
  absl::Duration by;
};
ClockJump JumpOf(const Fault& fault);

// Whose log, of kBlockedLog: every other is the router's, else the worker's.
bool IsRoutersLog(const Fault& fault);

std::vector<Fault> DrawSchedule(const ScheduleOptions& options);

// One line.
std::string Describe(const Fault& fault);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_SCHEDULE_H_
