// The lookahead survival: P(length > age + h | age), learnt from similar requests of the same tenant
// (survival_model.h).
//
// Cost: H + 1 multiplications per resident in Project, which reads one row of a table per resident. Observations cost O(1). Threads: one, as for every Lookahead.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_H_

#include "router/core/lookahead/lookahead.h"
#include "router/core/lookahead/survival_model.h"

namespace bfio::core {

class SurvivalLookahead final : public Lookahead {
 public:
  explicit SurvivalLookahead(const LookaheadOptions& options) : model_(options) {}

  absl::string_view name() const override { return "survival"; }
  bool learns() const override { return true; }
  int32_t GroupOf(uint32_t tenant, int64_t prompt_tokens) override {
    return model_.GroupOf(tenant, prompt_tokens);
  }
  void Observe(const Resident& resident, const HintTrail& trail, int64_t from, int64_t to,
               bool finished) override {
    model_.Observe(resident.group, from, to, finished);
  }
  void Advance() override { model_.Advance(); }
  void Project(absl::Span<const Resident> residents, const PlanTime& time, absl::Span<double> load) override;
  uint64_t CurveKey(const WaitingView& request, int32_t horizon) override;
  void Curve(const WaitingView& request, absl::Span<double> row) override;
  int64_t Stay(const Resident& resident, const PlanTime& time, absl::Span<const int64_t> steps,
               absl::Span<double> alive) const override;
  int64_t Stay(const WaitingView& request, absl::Span<const int64_t> steps,
               absl::Span<double> alive) override;

  const SurvivalModel& model() const { return model_; }

 private:
  SurvivalModel model_;
};

// Lookahead::CurveKey and Curve for lookaheads with a SurvivalModel. The key packs class, limit and age.
uint64_t ModelCurveKey(SurvivalModel& model, const WaitingView& request, int32_t horizon);
void ModelCurve(SurvivalModel& model, const WaitingView& request, absl::Span<double> row);
// Lookahead::Project: adds a resident that is active h steps ahead with probability alive[h] / known, for h
// below `steps_left`.
void AddExpectedLoad(const Standing& standing, int64_t steps_left, const double* alive, double known,
                     absl::Span<double> load);
// The number of entries of a row to which a resident may contribute.
int64_t StepsLeft(const Resident& resident, const Standing& standing, absl::Span<const double> row);
// Lookahead::Stay for lookaheads with a SurvivalModel.
int64_t ModelStay(const SurvivalModel& model, const Resident& resident, const PlanTime& time,
                  absl::Span<const int64_t> steps, absl::Span<double> alive);
int64_t ModelStay(SurvivalModel& model, const WaitingView& request, absl::Span<const int64_t> steps,
                  absl::Span<double> alive);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_H_
