#include "router/core/lookahead/survival.h"

#include <algorithm>

namespace bfio::core {
namespace {

int32_t GroupOf(SurvivalModel& model, const WaitingView& request) {
  return model.GroupOf(request.tenant, request.prefill_tokens - request.generated_tokens);
}

}  // namespace

void SurvivalLookahead::Project(absl::Span<const Resident> residents, const PlanTime& time,
                                absl::Span<double> load) {
  std::fill(load.begin(), load.end(), 0.0);
  for (const Resident& resident : residents) {
    const Standing standing = StandingOf(resident, time);
    const double* const known = model_.Table(resident.group).From(standing.known_age);
    AddExpectedLoad(standing, StepsLeft(resident, standing, load), known + SurvivalTable::Ahead(standing),
                    known[0], load);
  }
}

uint64_t SurvivalLookahead::CurveKey(const WaitingView& request, int32_t horizon) {
  return ModelCurveKey(model_, request, horizon);
}

void SurvivalLookahead::Curve(const WaitingView& request, absl::Span<double> row) {
  ModelCurve(model_, request, row);
}

int64_t SurvivalLookahead::Stay(const Resident& resident, const PlanTime& time,
                                absl::Span<const int64_t> steps, absl::Span<double> alive) const {
  return ModelStay(model_, resident, time, steps, alive);
}

int64_t SurvivalLookahead::Stay(const WaitingView& request, absl::Span<const int64_t> steps,
                                absl::Span<double> alive) {
  return ModelStay(model_, request, steps, alive);
}

int64_t StepsLeft(const Resident& resident, const Standing& standing, absl::Span<const double> row) {
  return resident.dropped ? 0
                          : std::clamp<int64_t>(standing.steps_left, 0, static_cast<int64_t>(row.size()));
}

void AddExpectedLoad(const Standing& standing, int64_t steps_left, const double* alive, double known,
                     absl::Span<double> load) {
  const double scale = 1 / known, tokens = static_cast<double>(standing.tokens);
  for (int64_t h = 0; h < steps_left; ++h) load[h] += (tokens + static_cast<double>(h)) * (alive[h] * scale);
}

uint64_t ModelCurveKey(SurvivalModel& model, const WaitingView& request, int32_t horizon) {
  const auto cap =
      static_cast<uint64_t>(std::clamp<int64_t>(request.max_new_tokens, 1, int64_t{horizon} + 1));
  const auto age = static_cast<uint64_t>(std::clamp<int64_t>(request.generated_tokens, 0, 1 << 30));
  return (static_cast<uint64_t>(GroupOf(model, request)) << 48) | (age << 16) | cap;
}

void ModelCurve(SurvivalModel& model, const WaitingView& request, absl::Span<double> row) {
  const double* const known = model.Table(GroupOf(model, request)).From(request.generated_tokens);
  for (int64_t h = 0; h < static_cast<int64_t>(row.size()); ++h) {
    row[h] = h == 0 ? 1 : h < request.max_new_tokens ? known[h] / known[0] : 0;
  }
}

int64_t ModelStay(const SurvivalModel& model, const Resident& resident, const PlanTime& time,
                  absl::Span<const int64_t> steps, absl::Span<double> alive) {
  const Standing standing = StandingOf(resident, time);
  if (resident.dropped || standing.steps_left <= 0) return 0;
  const SurvivalTable& table = model.Table(resident.group);
  const int64_t ahead = standing.plan_age - standing.known_age;
  for (size_t k = 0; k < steps.size() && steps[k] < standing.steps_left; ++k) {
    alive[k] = table.Stay(standing.known_age, ahead + steps[k]);
  }
  return standing.steps_left;
}

int64_t ModelStay(SurvivalModel& model, const WaitingView& request, absl::Span<const int64_t> steps,
                  absl::Span<double> alive) {
  const SurvivalTable& table = model.Table(GroupOf(model, request));
  for (size_t k = 0; k < steps.size() && steps[k] < request.max_new_tokens; ++k) {
    alive[k] = table.Stay(request.generated_tokens, steps[k]);
  }
  return request.max_new_tokens;
}

}  // namespace bfio::core
