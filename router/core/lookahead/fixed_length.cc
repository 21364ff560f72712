#include "router/core/lookahead/fixed_length.h"

#include <algorithm>

namespace bfio::core {

int64_t FixedLengthLookahead::LifetimeOf(const Resident& resident, const Progress& progress) const {
  if (resident.dropped) return 0;
  if (kind_ == Kind::kMaxTokens) return progress.steps_left;
  const int64_t run = progress.known_age - resident.generated_tokens;
  const int64_t planned = progress.plan_age - resident.generated_tokens;
  int64_t length = resident.expected_tokens;
  // It has exceeded its predicted length and is still active: expect it to exceed that by as much again.
  if (length <= run) length = std::max(run, planned) + 1 + (run - length);
  return std::min(progress.steps_left, length - planned);
}

void FixedLengthLookahead::Project(absl::Span<const Resident> residents, const PlanTime& time,
                                   absl::Span<double> load) {
  const int64_t columns = static_cast<int64_t>(load.size());
  gone_.assign(load.size() + 1, {});
  int64_t tokens = 0, requests = 0;
  for (const Resident& resident : residents) {
    const Progress progress = ProgressOf(resident, time);
    const int64_t stay = std::clamp<int64_t>(LifetimeOf(resident, progress), 0, columns);
    tokens += progress.tokens;
    ++requests;
    gone_[stay].tokens += progress.tokens;
    ++gone_[stay].requests;
  }
  for (int64_t h = 0; h < columns; ++h) {
    tokens -= gone_[h].tokens;
    requests -= gone_[h].requests;
    load[h] = static_cast<double>(tokens + requests * h);
  }
}

int64_t FixedLengthLookahead::Length(const WaitingView& request) const {
  const int64_t most = std::max<int64_t>(1, request.max_new_tokens);
  if (kind_ == Kind::kMaxTokens) return most;
  return std::clamp<int64_t>(request.predicted_output_tokens.value_or(most), 1, most);
}

uint64_t FixedLengthLookahead::CurveKey(const WaitingView& request, int32_t horizon) {
  return static_cast<uint64_t>(std::min(Length(request), int64_t{horizon} + 1));
}

void FixedLengthLookahead::Curve(const WaitingView& request, absl::Span<double> row) {
  const int64_t length = Length(request);
  for (int64_t h = 0; h < static_cast<int64_t>(row.size()); ++h) row[h] = h < length ? 1 : 0;
}

int64_t FixedLengthLookahead::Lifetime(const Resident& resident, const PlanTime& time,
                                       absl::Span<const int64_t>, absl::Span<double> alive) const {
  std::fill(alive.begin(), alive.end(), 1);
  return std::max<int64_t>(0, LifetimeOf(resident, ProgressOf(resident, time)));
}

int64_t FixedLengthLookahead::Lifetime(const WaitingView& request, absl::Span<const int64_t>,
                                       absl::Span<double> alive) {
  std::fill(alive.begin(), alive.end(), 1);
  return Length(request);
}

}  // namespace bfio::core
