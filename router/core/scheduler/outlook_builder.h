// Fills Snapshot::outlook. Gets from the lookahead a row per worker and one curve per kind of waiting
// request. Keeps the arrays between plans; the spans that it returns are valid until the next Build. Owned by
// the scheduler. Threads: the scheduler's.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

class OutlookBuilder {
 public:
  // Begins an outlook of `workers` workers. REQUIRES: 1 <= horizon <= kMaxHorizonSteps.
  void Begin(int32_t horizon, int32_t workers);
  // `load_scale` is the factor of the loads: above 1 where the worker reports more than its requests account
  // for.
  void AddWorker(Lookahead& lookahead, WorkerIndex worker, absl::Span<const Resident> residents,
                 const PlanTime& time, double load_scale);
  // Writes WaitingView::curve.
  void AddWaiting(Lookahead& lookahead, absl::Span<WaitingView> waiting);
  Outlook View() const { return {horizon_, load_, curves_}; }

 private:
  size_t columns() const { return static_cast<size_t>(horizon_) + 1; }

  int32_t horizon_ = 0;
  std::vector<double> load_;
  std::vector<double> curves_;
  absl::flat_hash_map<uint64_t, int32_t> rows_;
};

}  // namespace bfio::core
