// The lookahead that predicts nothing; also the base class of lookaheads that only learn.
//
// Threads: the decision thread's.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_NO_LOOKAHEAD_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_NO_LOOKAHEAD_H_

#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

class NoLookahead : public Lookahead {
 public:
  absl::string_view name() const override { return "none"; }
  bool predicts() const override { return false; }
  void Project(absl::Span<const Resident>, const PlanTime&, absl::Span<double>) override {}
  uint64_t CurveKey(const WaitingView&, int32_t) override { return 0; }
  void Curve(const WaitingView&, absl::Span<double>) override {}
  int64_t Lifetime(const Resident&, const PlanTime&, absl::Span<const int64_t>,
                   absl::Span<double>) const override {
    return 0;
  }
  int64_t Lifetime(const WaitingView&, absl::Span<const int64_t>, absl::Span<double>) override { return 0; }
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_NO_LOOKAHEAD_H_
