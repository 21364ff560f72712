// A run over time, as seen by its clients.
//
// Purpose: the data of the report's charts. Every request and token is counted, in equal intervals. When the
// bins are used up, each two neighbours are merged into one of twice the width, so charts of runs of seconds
// and of days have the same size (at most some 20 MB of histograms). Pure; one thread at a time (the runner
// guards it). Times in seconds after the start of the run, in any order.
#pragma once

#include <cstdint>
#include <vector>

#include "common/stats/histogram.h"
#include "tools/loadgen/ended_request.h"

namespace bfio::loadgen {

struct TimelineBin {
  // By due time, whatever their result.
  uint64_t due = 0;
  // By the time they ended.
  uint64_t completed = 0;
  uint64_t failed = 0;
  // By time of arrival; includes tokens of failed and interrupted requests.
  uint64_t tokens = 0;
  // Completed requests by due time; gaps between tokens by the time of the later token.
  Histogram ttft_s, tpot_s, e2e_s, itl_s;
  // Open loop: by due time.
  Histogram schedule_lag_s;
  // Sum, maximum and number of samples of the requests under way.
  uint64_t under_way_sum = 0;
  uint64_t under_way_max = 0;
  uint64_t under_way_samples = 0;

  void Merge(const TimelineBin& other);
};

class Timeline {
 public:
  // Maximum number of bins. After the first merge there are at least half as many.
  static constexpr size_t kMostBins = 120;

  void OnSent(double due_s) { ++At(due_s).due; }
  void OnLag(double due_s, double lag_s) { At(due_s).schedule_lag_s.Add(lag_s); }
  void OnUnderWay(double now_s, uint64_t requests);
  void OnEnded(const EndedRequest& request);

  // Bin i covers [i, i + 1) * width_s.
  const std::vector<TimelineBin>& bins() const { return bins_; }
  double width_s() const { return width_s_; }

 private:
  TimelineBin& At(double seconds);

  double width_s_ = 0.5;
  std::vector<TimelineBin> bins_;
};

}  // namespace bfio::loadgen
