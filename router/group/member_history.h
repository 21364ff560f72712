// What a group records about workers that are not attached. A worker that kept the group from forming is
// refused for a while. A worker that was draining when its connection broke continues to drain when the same
// process returns. Keyed by worker_id, bounded. It also counts how often new workers of any name have left
// while an epoch formed with them: each time the whole group stopped without effect, so later ones wait
// longer. Threads: the group's. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace bfio::router {

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
