// The lookahead survival: P(length > age + h | age), learnt from similar requests of the same tenant
// (survival_model.h). Cost: H + 1 multiplications per resident in Project, which reads one row of a table per
// resident. Observations cost O(1). Threads: one, as for every Lookahead.
#pragma once

#include "router/core/lookahead/lookahead.h"
#include "router/core/lookahead/survival_model.h"

namespace bfio::core {

class SurvivalLookahead : public Lookahead {
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
  // The key packs class, limit and age.
  uint64_t CurveKey(const WaitingView& request, int32_t horizon) override;
  void Curve(const WaitingView& request, absl::Span<double> row) override;
  int64_t Lifetime(const Resident& resident, const PlanTime& time, absl::Span<const int64_t> steps,
                   absl::Span<double> alive) const override;
  int64_t Lifetime(const WaitingView& request, absl::Span<const int64_t> steps,
                   absl::Span<double> alive) override;

  const SurvivalModel& model() const { return model_; }

 protected:
  // A row whose entry i is proportional to P(length > known_age + i), valid up to i = `last`.
  virtual const double* Alive(const Resident& resident, int64_t known_age, int64_t last) {
    return model_.Table(resident.group).From(known_age);
  }

 private:
  int32_t GroupOf(const WaitingView& request) {
    return model_.GroupOf(request.tenant, request.prefill_tokens - request.generated_tokens);
  }

  SurvivalModel model_;
};

}  // namespace bfio::core
