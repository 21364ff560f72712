#include "router/core/lookahead/survival.h"

#include <algorithm>

namespace bfio::core {
namespace {

int32_t GroupOf(SurvivalModel& model, const WaitingView& request) {
  return model.GroupOf(request.tenant, request.prefill_tokens - request.generated_tokens);
}

}  // namespace

void SurvivalLookahead::Project(absl::Span<const Resident> residents, const PlanTime& time,
                                absl::Span<double> load, absl::Span<double> quiet) {
  sum_.Begin(residents.size(), load.size());
  for (const Resident& resident : residents) {
    const Standing standing = StandingOf(resident, time);
    const int64_t room = sum_.Room(resident, standing);
    if (room == 0) continue;
    const double* const known = model_.Table(resident.group).From(standing.known_age);
    sum_.Add(standing, room, known + SurvivalTable::Ahead(standing), 1 / known[0]);
  }
  sum_.Finish(load, quiet);
}

uint64_t SurvivalLookahead::CurveKey(const WaitingView& request, int32_t horizon) {
  return ModelCurveKey(model_, request, horizon);
}

void SurvivalLookahead::Curve(const WaitingView& request, absl::Span<double> row) {
  ModelCurve(model_, request, row);
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

}  // namespace bfio::core
