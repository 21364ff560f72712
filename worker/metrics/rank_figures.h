// The measurements of a rank, as shown by a scrape of its worker.
//
// Purpose: plain data between the rank, which keeps it (worker/link/rank_recorder.h), and the text that is
// made of it. Counts begin at the start of the process. Threads: plain data. Tokens, seconds, joules.
#ifndef BFIO_WORKER_METRICS_RANK_FIGURES_H_
#define BFIO_WORKER_METRICS_RANK_FIGURES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/cost/online_fit.h"
#include "common/telemetry/metrics/distribution.h"
#include "worker/energy/energy_monitor.h"

namespace bfio::worker {

// From first to last; a rank that loses its router goes back to kConnecting, but in an epoch that goes on
// without one it is kServing nevertheless.
enum class RankPhase {
  // Loads its model.
  kStarting,
  // No stream to the router.
  kConnecting,
  // Known to the router, in no epoch.
  kJoined,
  // In an epoch: steps, or waits for work.
  kServing,
  // Asked the router to let it go; may still step.
  kLeaving,
};

// "starting", "connecting", "joined", "serving", "leaving".
absl::string_view NameOf(RankPhase phase);

struct RankFigures {
  std::string worker_id;
  RankPhase phase = RankPhase::kStarting;
  bool connected = false;
  // Of the present epoch; 0 and absent outside of one.
  uint64_t epoch = 0;
  std::optional<int32_t> rank;
  int32_t ranks = 0;

  uint64_t epochs_formed = 0;
  uint64_t epochs_failed = 0;
  // Streams to the router after the first.
  uint64_t reconnects = 0;
  uint64_t reports_sent = 0;

  // Steps whose barrier all ranks left well.
  uint64_t steps = 0;
  uint64_t generated_tokens = 0;
  uint64_t prefill_tokens = 0;
  uint64_t finished_requests = 0;
  // Taken out for want of KV.
  uint64_t preempted_requests = 0;
  // Ended for a fault of their own.
  uint64_t failed_requests = 0;
  Distribution local_s{StepSeconds()};
  Distribution barrier_wait_s{StepSeconds()};
  Distribution gap_s{StepSeconds()};

  // After the last step.
  int64_t slots = 0;
  int64_t active_requests = 0;
  // In plans whose step has not come.
  int64_t waiting_requests = 0;
  int64_t load_tokens = 0;
  int64_t kv_tokens = 0;
  int64_t free_kv_tokens = 0;

  // Messages that the router has not read; tokens generated without a router and not reported yet.
  int64_t unsent_messages = 0;
  int64_t undelivered_tokens = 0;
  // Kept for a router that may come after this one.
  int64_t held_requests = 0;
  int64_t held_bytes = 0;

  // Absent: not known, not measured.
  std::optional<StepCostEstimate> cost;
  std::optional<EnergyReading> energy;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_METRICS_RANK_FIGURES_H_
