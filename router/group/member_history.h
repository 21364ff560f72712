// What a group remembers of workers that are not attached.
//
// Purpose: a worker that kept the group from forming is refused for a while, and one that was draining when
// its connection broke goes on draining when the same process comes back. Keyed by worker_id, bounded. And
// how often, whatever their names, newcomers have left while an epoch was formed with them: each time the
// whole group stopped for nothing, so the next newcomers wait longer.
// Threads: the group's. Pure.
#ifndef BFIO_ROUTER_GROUP_MEMBER_HISTORY_H_
#define BFIO_ROUTER_GROUP_MEMBER_HISTORY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace bfio::router {

class MemberHistory {
 public:
  // Of each kind of memory, in workers.
  static constexpr size_t kMaxWorkers = 1024;
  // A penalty doubles each time, from the first to the last.
  static constexpr absl::Duration kFirstPenalty = absl::Seconds(1);
  static constexpr absl::Duration kLastPenalty = absl::Minutes(2);
  // For how long it is remembered that a newcomer left, and how many are.
  static constexpr absl::Duration kLeftMemory = absl::Minutes(5);
  static constexpr size_t kMaxLeft = 16;

  void Punish(const std::string& worker_id, absl::Time now);
  // A newcomer's connection broke while an epoch was formed with it. Once is bad luck; from the second time
  // on it is punished, too.
  void CountLeft(const std::string& worker_id, absl::Time now);
  // Times that this has happened lately, with any worker.
  int RecentlyLeft(absl::Time now) const;

  void Forgive(const std::string& worker_id) { penalties_.erase(worker_id); }
  bool Refuses(const std::string& worker_id, absl::Time now) const;

  // `instance`: the router that the worker had followed when it attached.
  void RememberDraining(const std::string& worker_id, uint64_t instance);
  bool WasDraining(const std::string& worker_id) const { return draining_.contains(worker_id); }
  // Forgets it. True when a worker of that name that has followed router `followed` is the same process, and
  // not another of that name; `own` is this router's instance.
  bool TakeDraining(const std::string& worker_id, uint64_t followed, uint64_t own);

 private:
  struct Penalty {
    int count = 0;
    // Times it left as a newcomer.
    int left = 0;
    absl::Time until = absl::InfinitePast();
  };
  // Makes space for it.
  Penalty& PenaltyOf(const std::string& worker_id);

  // Oldest first.
  std::deque<absl::Time> left_;
  std::map<std::string, Penalty> penalties_;
  std::map<std::string, uint64_t> draining_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_MEMBER_HISTORY_H_
