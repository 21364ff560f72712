// The measurements of a rank, as a scrape of its worker shows them. Plain data between the rank, which
// updates it (worker/link/rank_recorder.h), and the code that formats it as text. Counts start with the
// process. Threads: plain data. Units: tokens, seconds, joules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/cost/online_fit.h"

namespace bfio::worker {

// In the order of a rank's lifetime. A rank that loses its router returns to kConnecting; in an epoch that
// continues without a router it stays kServing.
enum class RankPhase {
  // Loading its model.
  kStarting,
  // Without a stream to the router.
  kConnecting,
  // Registered with the router, in no epoch.
  kJoined,
  // In an epoch: stepping, or waiting for work.
  kServing,
  // Has requested its release from the router; may still step.
  kLeaving,
};

// "starting", "connecting", "joined", "serving", "leaving".
absl::string_view NameOf(RankPhase phase);

struct RankTelemetry {
  std::string worker_id;
  RankPhase phase = RankPhase::kStarting;
  // What the phase follows from: its model is loaded, it has a stream, it is in an epoch, it asked to leave.
  bool started = false;
  bool connected = false;
  bool in_epoch = false;
  bool leaving = false;
  uint64_t epochs_failed = 0;

  // Steps whose barrier succeeded on all ranks.
  uint64_t steps = 0;
  // Requests preempted because KV ran out.
  uint64_t preempted_requests = 0;
  // Requests that ended with an error of their own.
  uint64_t failed_requests = 0;

  // State after the last step.
  int64_t kv_tokens = 0;
  int64_t free_kv_tokens = 0;
  // Tokens generated without a router and not reported yet.
  int64_t undelivered_tokens = 0;
  // Requests kept for the next router.
  int64_t held_requests = 0;

  StepCostEstimate cost;
  // Energy of the device while the rank waited within steps; absent: not measured.
  std::optional<double> barrier_j;
};

}  // namespace bfio::worker
