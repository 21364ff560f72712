// The clock of waiting ages, common to all groups.
//
// Purpose: groups step at their own paces; ages, their priority weights and the reference wait belong to the
// shared pool and need one clock. It ticks once in the time that the mean rank of the open groups takes for a
// step: each completed step of a group adds its ranks (each report of a rank without a barrier adds one), and
// the clock ticks when the sum has reached the ranks of all open groups. With one group it counts that
// group's steps. A group that plans n steps ahead decides at the clock's time plus n. Deterministic; never
// goes back. Threads: one.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_POOL_CLOCK_H_
#define BFIO_ROUTER_CORE_SCHEDULER_POOL_CLOCK_H_

#include <algorithm>
#include <cstdint>

namespace bfio::core {

class PoolClock {
 public:
  // Ticks so far.
  int64_t now() const { return now_; }
  // The step from which the age of a request enqueued now counts; never decreases.
  int64_t NextStep() const { return next_; }
  // The time of a plan that reaches `ahead` steps beyond its group's reports. No waiting request counts from
  // a later step.
  int64_t At(int64_t ahead) const { return std::max(next_, now_ + ahead); }

  // Sets the number of ranks in open groups from now on.
  void SetOpenRanks(int64_t ranks) { open_ranks_ = ranks; }
  int64_t open_ranks() const { return open_ranks_; }

  // `ranks` ranks have made a step. `own_ranks`: number of ranks of their group, which may have been closed
  // meanwhile. True when the clock ticks.
  bool AddSteps(int64_t ranks, int64_t own_ranks);

  // A group restarts; `latest` is the last time for which it has decided. The count towards the next tick
  // starts again, because it came from other ranks.
  void BeginEpoch(int64_t latest) {
    now_ = std::max(now_, latest);
    next_ = std::max(next_, now_ + 1);
    counted_ = 0;
  }

  // `lead` is the smallest number of steps by which an open group's plans are ahead of its reports.
  void Lead(int64_t lead) { next_ = std::max(next_, now_ + lead + 1); }

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
  // Modulo instead of subtraction, because there may be fewer ranks now than when counting began.
  counted_ %= per_tick;
  ++now_;
  return true;
}

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_POOL_CLOCK_H_
