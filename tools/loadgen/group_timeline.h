// A group over time: the load of each rank, and how long it waited at the barrier.
//
// Purpose: data for the barrier charts of the report, from Admin.WatchSteps. Memory is bounded for runs of
// any length (time_bins.h), and by kMostRanks. Pure; one thread at a time.
#ifndef BFIO_TOOLS_LOADGEN_GROUP_TIMELINE_H_
#define BFIO_TOOLS_LOADGEN_GROUP_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/loadgen/time_bins.h"

namespace bfio::loadgen {

// One step without protobuf types; lists are indexed by rank.
struct GroupStep {
  std::vector<double> load_tokens;
  // Time of local work, and time of waiting at the barrier.
  std::vector<double> local_s, wait_s;
  uint32_t waiting_requests = 0;
};

// Sums over the steps in which the rank took part.
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
  // Ranks from this number on are ignored.
  static constexpr size_t kMostRanks = 1024;

  // `seconds` after the start of the run. Ignores steps without ranks or with lists of different lengths.
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
