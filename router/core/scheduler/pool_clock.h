// The clock of waiting ages, common to all groups.
//
// Purpose: groups step at their own paces; ages, priorities of age and the reference wait belong to the
// pool that they share and need one clock. It ticks once in the time that the mean rank of the open groups
// takes for a step: each completed step of a group adds its ranks (each report of a rank without a barrier
// adds one), and the clock ticks when the sum has reached the ranks of all open groups. With one group it
// counts that group's steps. A group that plans some steps ahead decides at the clock's time plus so many.
// Deterministic; never goes back. Threads: one.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_POOL_CLOCK_H_
#define BFIO_ROUTER_CORE_SCHEDULER_POOL_CLOCK_H_

#include <algorithm>
#include <cstdint>

namespace bfio::core {

class PoolClock {
 public:
  // Ticks so far.
  int64_t now() const { return now_; }
  // The step that a request enqueued now counts from; never less than before.
  int64_t NextStep() const { return next_; }
  // The time of a plan that reaches `ahead` steps beyond what its group has reported: no request that waits
  // is younger than it.
  int64_t At(int64_t ahead) const { return std::max(next_, now_ + ahead); }

  // So many ranks are in open groups from now on.
  void SetOpenRanks(int64_t ranks) { open_ranks_ = ranks; }
  int64_t open_ranks() const { return open_ranks_; }

  // So many ranks have made a step; `own_ranks` are those of their group, which may have been closed
  // meanwhile. True when it ticks.
  bool AddSteps(int64_t ranks, int64_t own_ranks);

  // A group restarts; the last time it has decided for was `latest`. What was counted towards the next
  // tick was counted by other ranks.
  void BeginEpoch(int64_t latest) {
    now_ = std::max(now_, latest);
    next_ = std::max(next_, now_ + 1);
    counted_ = 0;
  }

  // The least that an open group's plans are ahead of its reports is `lead`.
  void Lead(int64_t lead) { next_ = std::max(next_, now_ + lead + 1); }

  struct Saved {
    int64_t now = 0;
    int64_t next = 1;
    // Ranks' steps towards the next tick.
    int64_t counted = 0;
  };
  Saved Save() const { return {now_, next_, counted_}; }
  void Restore(const Saved& saved) {
    now_ = saved.now;
    next_ = saved.next;
    counted_ = saved.counted;
  }

 private:
  int64_t now_ = 0;
  int64_t next_ = 1;
  int64_t counted_ = 0;
  int64_t open_ranks_ = 0;
};

inline bool PoolClock::AddSteps(int64_t ranks, int64_t own_ranks) {
  counted_ += ranks;
  const int64_t per_tick = std::max({int64_t{1}, open_ranks_, own_ranks});
  if (counted_ < per_tick) return false;
  // Not by subtraction: there may be fewer ranks now than when counting began.
  counted_ %= per_tick;
  ++now_;
  return true;
}

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_POOL_CLOCK_H_
