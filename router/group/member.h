// The record that a group keeps of one worker. Shared by Group and its two kinds; no other code uses it
// (MemberView is for operators). Threads: the group's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/cost/group_time.h"
#include "common/cost/online_fit.h"
#include "router/core/model/request.h"
#include "router/core/scheduler/worker_speeds.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// Measured step costs of a worker, and the times that plans use. Kept per member by the group. The edge
// checks the values. Plain data. Threads: the group's.
struct WorkerTelemetry {
  std::optional<StepCostEstimate> cost;
  std::optional<GroupCost> batch_cost;
  // The times that plans use.
  core::WorkerTime time;
  // Mean service time of a request on this worker (core::WorkerSpec::service_time).
  double service_time = 1;
  // Prompt tokens of its last step, and of all its reports.
  int64_t step_prefill_tokens = 0;
  int64_t prefill_tokens = 0;
  // As of its last report (StepReport).
  int32_t extra_slots = 0;
  std::optional<EngineLoad> engine_load;
  // Sums over all its reports that give prefix cache hits: prompt tokens of requests that have begun to
  // generate, and the prompt tokens that it found in its prefix cache.
  int64_t prefix_cache_queries = 0, prefix_cache_hits = 0;
};

struct Member {
  MemberId id = 0;
  WorkerHello hello;
  // Order of arrival. Ranks follow it, so members that stay keep their relative order.
  uint64_t sequence = 0;
  // The worker gets no new requests, and is released when its last one has ended.
  bool draining = false;
  // The worker requested to leave, and will exit in any case.
  bool leaving = false;
  WorkerTelemetry telemetry;

  // --- epochs ---

  // Its rank in the last epoch that opened with it, and that epoch.
  std::optional<core::WorkerIndex> rank;
  uint64_t rank_epoch = 0;
  // The epoch of its last successful EpochReady.
  uint64_t spoken_epoch = 0;
  // Rank in the epoch being formed.
  core::WorkerIndex next_rank = 0;
  // Whether it has answered the EpochOffer, and whether with success.
  bool answered = false;
  bool ready = false;
  std::string offer;
  // The requests that it held when it was ready.
  std::vector<HeldActive> active;

  // --- requests of an earlier router ---

  // The worker holds requests of an earlier router, which it announces before it is ready. Reset when an
  // epoch opens with it.
  bool recovering = false;
  std::vector<HeldRequest> announced;
  int64_t announced_bytes = 0;

  // --- progress ---

  // The step of its newest report in the present epoch.
  int64_t reported_step = 0;
  // Since when its report is due: with a barrier since another rank reported a newer step, without one since
  // its last plan or report. Infinite when none is due.
  absl::Time behind_since = absl::InfiniteFuture();
  // Without a barrier: the longest time that a report was due; 0 before the first.
  absl::Duration longest_step;
  // With a barrier: whether it reported ranks that it could not reach; whether others could not reach it.
  bool blames = false;
  bool blamed = false;
};

// What a group records about workers that are not attached. A worker that kept the group from forming is
// refused for a while. A worker that was draining when its connection broke continues to drain when the same
// process returns. Keyed by worker_id, bounded. It also counts how often new workers of any name have left
// while an epoch formed with them: each time the whole group stopped without effect, so later ones wait
// longer. Threads: the group's. Pure.
class MemberHistory {
 public:
  // Bound of each map, in workers.
  static constexpr size_t kMaxWorkers = 1024;
  // The first and the longest penalty; each penalty of a worker is twice its last one.
  static constexpr absl::Duration kFirstPenalty = absl::Seconds(1);
  static constexpr absl::Duration kLastPenalty = absl::Minutes(2);
  // How long a new worker's departure is counted, and the bound of the list.
  static constexpr absl::Duration kLeftMemory = absl::Minutes(5);
  static constexpr size_t kMaxLeft = 16;

  void Punish(const std::string& worker_id, absl::Time now);
  // A new worker's connection broke while an epoch formed with it. The first time may be chance; from the
  // second time on the worker is also refused for a while.
  void CountLeft(const std::string& worker_id, absl::Time now);
  // Number of such departures within kLeftMemory, of any worker.
  int RecentlyLeft(absl::Time now) const;

  void Forgive(const std::string& worker_id) { penalties_.erase(worker_id); }
  bool Refuses(const std::string& worker_id, absl::Time now) const;

  // `instance`: the router that the worker had followed when it attached. Evicts the oldest entry when the
  // map is full.
  void RememberDraining(const std::string& worker_id, uint64_t instance);
  bool WasDraining(const std::string& worker_id) const { return draining_.contains(worker_id); }
  // Removes the worker's entry. True when the worker that has followed router `followed` is the same process
  // that was draining, not another one of that name; `own` is this router's instance.
  bool TakeDraining(const std::string& worker_id, uint64_t followed, uint64_t own);

 private:
  struct Penalty {
    int count = 0;
    // Departures while joining.
    int left = 0;
    absl::Time until = absl::InfinitePast();
  };
  struct Draining {
    uint64_t instance = 0;
    // Position in the order of RememberDraining.
    uint64_t sequence = 0;
  };
  // Evicts entries when the map is full.
  Penalty& PenaltyOf(const std::string& worker_id);

  // Times of recent departures, oldest first.
  std::deque<absl::Time> left_;
  std::map<std::string, Penalty> penalties_;
  std::map<std::string, Draining> draining_;
  uint64_t next_sequence_ = 0;
};

}  // namespace bfio::router
