#include "router/core/lookahead/survival.h"

#include <algorithm>

namespace bfio::core {

void SurvivalLookahead::Project(absl::Span<const Resident> residents, const PlanTime& time,
                                absl::Span<double> load) {
  std::fill(load.begin(), load.end(), 0.0);
  for (const Resident& resident : residents) {
    const Progress progress = ProgressOf(resident, time);
    const int64_t steps_left = std::min(progress.steps_left, static_cast<int64_t>(load.size()));
    if (resident.dropped || steps_left <= 0) continue;
    const int64_t ahead = SurvivalTable::Ahead(progress);
    const double* const known = Alive(resident, progress.known_age, ahead + steps_left - 1);
    const double* const alive = known + ahead;
    const double scale = 1 / known[0], tokens = static_cast<double>(progress.tokens);
    for (int64_t h = 0; h < steps_left; ++h) {
      load[h] += (tokens + static_cast<double>(h)) * (alive[h] * scale);
    }
  }
}

uint64_t SurvivalLookahead::CurveKey(const WaitingView& request, int32_t horizon) {
  const auto cap =
      static_cast<uint64_t>(std::clamp<int64_t>(request.max_new_tokens, 1, int64_t{horizon} + 1));
  const auto age = static_cast<uint64_t>(std::clamp<int64_t>(request.generated_tokens, 0, 1 << 30));
  return (static_cast<uint64_t>(GroupOf(request)) << 48) | (age << 16) | cap;
}

void SurvivalLookahead::Curve(const WaitingView& request, absl::Span<double> row) {
  const double* const known = model_.Table(GroupOf(request)).From(request.generated_tokens);
  for (int64_t h = 0; h < static_cast<int64_t>(row.size()); ++h) {
    row[h] = h == 0 ? 1 : h < request.max_new_tokens ? known[h] / known[0] : 0;
  }
}

int64_t SurvivalLookahead::Lifetime(const Resident& resident, const PlanTime& time,
                                    absl::Span<const int64_t> steps, absl::Span<double> alive) const {
  const Progress progress = ProgressOf(resident, time);
  if (resident.dropped || progress.steps_left <= 0) return 0;
  const SurvivalTable& table = model_.Table(resident.group);
  const int64_t ahead = progress.plan_age - progress.known_age;
  for (size_t k = 0; k < steps.size() && steps[k] < progress.steps_left; ++k) {
    alive[k] = table.SurvivalProbability(progress.known_age, ahead + steps[k]);
  }
  return progress.steps_left;
}

int64_t SurvivalLookahead::Lifetime(const WaitingView& request, absl::Span<const int64_t> steps,
                                    absl::Span<double> alive) {
  const SurvivalTable& table = model_.Table(GroupOf(request));
  for (size_t k = 0; k < steps.size() && steps[k] < request.max_new_tokens; ++k) {
    alive[k] = table.SurvivalProbability(request.generated_tokens, steps[k]);
  }
  return request.max_new_tokens;
}

}  // namespace bfio::core
