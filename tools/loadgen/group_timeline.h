// How the group went over time: the load of each rank, and how long it waited at the barrier.
//
// Purpose: the report's picture of the barrier, from Admin.WatchSteps. Memory is bounded however long the run
// is (time_bins.h), and by kMostRanks. Pure; one thread at a time.
#ifndef BFIO_TOOLS_LOADGEN_GROUP_TIMELINE_H_
#define BFIO_TOOLS_LOADGEN_GROUP_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/loadgen/time_bins.h"

namespace bfio::loadgen {

// Of one step, apart from protobuf. By rank.
struct GroupStep {
  std::vector<double> load_tokens;
  // Local work, and waiting at the barrier.
  std::vector<double> local_s, wait_s;
  uint32_t waiting_requests = 0;
};

// Sums over the steps in which the rank was there.
struct RankSums {
  uint64_t steps = 0;
  double load_tokens = 0;
  double local_s = 0;
  double wait_s = 0;
};

struct GroupBin {
  uint64_t steps = 0;
  double max_load_tokens = 0;
  double mean_load_tokens = 0;
  double waiting_requests = 0;
  std::vector<RankSums> ranks;

  void Merge(const GroupBin& other);
};

class GroupTimeline {
 public:
  // Ranks beyond are not looked at.
  static constexpr size_t kMostRanks = 1024;

  // `seconds` after the start of the run. Steps without ranks are left out, as are lists of other lengths.
  void Add(double seconds, const GroupStep& step);
  // Steps that the router dropped because this reader was too slow.
  void AddMissed(uint64_t steps) { missed_steps_ += steps; }

  const TimeBins<GroupBin>& bins() const { return bins_; }
  uint64_t missed_steps() const { return missed_steps_; }

 private:
  TimeBins<GroupBin> bins_;
  uint64_t missed_steps_ = 0;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_GROUP_TIMELINE_H_
