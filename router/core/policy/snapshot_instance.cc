#include "router/core/policy/snapshot_instance.h"

#include <algorithm>

namespace bfio::core {
namespace {

// The first `steps` entries of every row of `from`, whose rows have `from_steps`.
void CopyRows(absl::Span<const double> from, int32_t from_steps, int32_t steps, std::vector<double>& to) {
  to.clear();
  for (size_t row = 0; row < from.size(); row += static_cast<size_t>(from_steps)) {
    const auto begin = from.begin() + static_cast<int64_t>(row);
    to.insert(to.end(), begin, begin + steps);
  }
}

}  // namespace

void FillInstance(const Snapshot& snapshot, const FreeCapacity& free, int32_t horizon, Instance& instance) {
  instance.workers.assign(free.views().begin(), free.views().end());
  instance.items.resize(snapshot.waiting.size());
  for (size_t i = 0; i < snapshot.waiting.size(); ++i) {
    const WaitingView& request = snapshot.waiting[i];
    SolverItem item;
    item.load = request.prefill_tokens;
    item.kv_reserve = request.kv_reserve_tokens;
    item.priority = request.priority;
    item.curve = request.curve;
    item.kv_need = request.kv_need;
    instance.items[i] = item;
  }
  instance.kv = free.kv();
  const Outlook& outlook = snapshot.outlook;
  instance.target_load = 0;
  instance.target_ahead.clear();
  instance.discount.clear();
  instance.horizon = std::min(horizon, outlook.horizon);
  if (instance.horizon == 0) {
    instance.ahead.clear();
    instance.curves.clear();
    return;
  }
  CopyRows(outlook.load, outlook.horizon + 1, instance.steps(), instance.ahead);
  CopyRows(outlook.curves, outlook.horizon + 1, instance.steps(), instance.curves);
}

}  // namespace bfio::core
