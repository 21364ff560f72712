#include "router/core/scheduler/outlook_builder.h"

namespace bfio::core {

void OutlookBuilder::Begin(int32_t horizon, int32_t workers) {
  horizon_ = horizon;
  load_.resize(columns() * static_cast<size_t>(workers));
  curves_.clear();
}

void OutlookBuilder::AddWorker(Lookahead& lookahead, WorkerIndex worker, absl::Span<const Resident> residents,
                               const PlanTime& time, double load_scale) {
  const absl::Span<double> load =
      absl::MakeSpan(load_).subspan(static_cast<size_t>(worker) * columns(), columns());
  lookahead.Project(residents, time, load);
  if (load_scale == 1) return;
  for (double& tokens : load) tokens *= load_scale;
}

void OutlookBuilder::AddWaiting(Lookahead& lookahead, absl::Span<WaitingView> waiting) {
  rows_.clear();
  uint64_t last_key = 0;
  int32_t last_row = -1;
  for (WaitingView& view : waiting) {
    const uint64_t key = lookahead.CurveKey(view, horizon_);
    if (last_row < 0 || key != last_key) {
      const auto [it, is_new] = rows_.try_emplace(key, static_cast<int32_t>(curves_.size() / columns()));
      if (is_new) {
        curves_.resize(curves_.size() + columns());
        lookahead.Curve(view, absl::MakeSpan(curves_).last(columns()));
      }
      last_key = key;
      last_row = it->second;
    }
    view.curve = last_row;
  }
}

}  // namespace bfio::core
