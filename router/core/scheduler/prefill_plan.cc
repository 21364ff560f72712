#include "router/core/scheduler/prefill_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace bfio::core {

int64_t PendingAhead(const PrefillReport& report, const PrefillAhead& ahead) {
  int64_t rate = std::max(report.token_budget - ahead.active, kLeastPrefillRows);
  if (ahead.piece) rate = std::min(rate, *ahead.piece);
  const int64_t all = report.pending_tokens + ahead.inflight_tokens;
  // Steps may be any number in a damaged log.
  return all / rate < ahead.steps ? 0 : all - rate * ahead.steps;
}

std::optional<int64_t> EqualPiece(absl::Span<const int64_t> pending) {
  const int64_t all = std::accumulate(pending.begin(), pending.end(), int64_t{0});
  if (all == 0) return std::nullopt;
  const auto ranks = static_cast<int64_t>(pending.size());
  return std::clamp<int64_t>((all + ranks - 1) / ranks, kLeastPiece, std::numeric_limits<int32_t>::max());
}

}  // namespace bfio::core
