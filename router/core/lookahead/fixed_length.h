// oracle and max_tokens: every request's length is taken as known.
//
//   oracle      o = predicted_output_tokens, where given, else max_new_tokens. Exact when the prediction is
//               (the simulator's). A request that outlives its prediction is expected to outlive it by as
//               much again.
//   max_tokens  o = max_new_tokens: what admission reserves. Never too short.
//
// Cost: one pass over the residents and one over h (a difference array), integers throughout.
// Threads: one, as every Lookahead.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_FIXED_LENGTH_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_FIXED_LENGTH_H_

#include <vector>

#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

class FixedLengthLookahead final : public Lookahead {
 public:
  explicit FixedLengthLookahead(bool oracle) : oracle_(oracle) {}

  absl::string_view name() const override { return oracle_ ? "oracle" : "max_tokens"; }
  void Project(absl::Span<const Resident> residents, const PlanTime& time, absl::Span<double> load,
               absl::Span<double> quiet) override;
  uint64_t CurveKey(const WaitingView& request, int32_t horizon) override;
  void Curve(const WaitingView& request, absl::Span<double> row) override;
  int64_t Stay(const Resident& resident, const PlanTime& time, absl::Span<const int64_t> steps,
               absl::Span<double> alive) const override;
  int64_t Stay(const WaitingView& request, absl::Span<const int64_t> steps,
               absl::Span<double> alive) override;

 private:
  // Steps from the plan's step on that the resident stays; 0 or less: gone by then.
  int64_t Stay(const Resident& resident, const Standing& standing) const;
  int64_t Length(const WaitingView& request) const;

  bool oracle_;
  // [h]: requests that are active at h - 1 and not at h, and what they held at the plan's step.
  struct Gone {
    int64_t requests = 0;
    int64_t tokens = 0;
  };
  std::vector<Gone> gone_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_FIXED_LENGTH_H_
