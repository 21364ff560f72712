// The measurements of a rank, as a scrape of its worker shows them. Plain data between the rank, which
// updates it (worker/link/rank_recorder.h), and the code that formats it as text. Counts start with the
// process. Threads: plain data. Units: tokens, seconds, joules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/cost/online_fit.h"
#include "common/telemetry/metrics/distribution.h"
#include "worker/energy/energy_monitor.h"

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
  bool connected = false;
  // The current epoch and the rank's place in it; 0 and absent outside of an epoch.
  uint64_t epoch = 0;
  std::optional<int32_t> rank;
  int32_t ranks = 0;

  uint64_t epochs_formed = 0;
  uint64_t epochs_failed = 0;
  // Streams to the router after the first.
  uint64_t reconnects = 0;
  uint64_t reports_sent = 0;

  // Steps whose barrier succeeded on all ranks.
  uint64_t steps = 0;
  uint64_t generated_tokens = 0;
  uint64_t prefill_tokens = 0;
  uint64_t finished_requests = 0;
  // Requests preempted because KV ran out.
  uint64_t preempted_requests = 0;
  // Requests that ended with an error of their own.
  uint64_t failed_requests = 0;
  Distribution local_s{StepSeconds()};
  Distribution barrier_wait_s{StepSeconds()};
  Distribution gap_s{StepSeconds()};

  // State after the last step.
  int64_t slots = 0;
  int64_t active_requests = 0;
  // Assignments in plans whose step has not begun.
  int64_t waiting_requests = 0;
  int64_t load_tokens = 0;
  int64_t kv_tokens = 0;
  int64_t free_kv_tokens = 0;

  // Messages that the router has not read, and tokens generated without a router and not reported yet.
  int64_t unsent_messages = 0;
  int64_t undelivered_tokens = 0;
  // Requests kept for the next router.
  int64_t held_requests = 0;
  int64_t held_bytes = 0;

  // Absent: unknown, not measured.
  std::optional<StepCostEstimate> cost;
  std::optional<EnergyReading> energy;
};

}  // namespace bfio::worker
