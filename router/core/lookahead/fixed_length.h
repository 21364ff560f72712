// The lookaheads oracle and max_tokens: every request's length counts as known.
//
//   oracle      o = predicted_output_tokens, where given, else max_new_tokens. Exact when the prediction is
//               (the simulator's). A request that has exceeded its prediction by n tokens is expected to
//               generate n more.
//   max_tokens  o = max_new_tokens, which admission reserves. Never too short.
//
// Cost: one pass over the residents and one over h (a difference array), integers throughout. Threads: one,
// as for every Lookahead.
#pragma once

#include <vector>

#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

// The lookahead that predicts nothing; also the base class of lookaheads that only learn. Threads: the
// decision thread's.
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

class FixedLengthLookahead final : public Lookahead {
 public:
  enum class Kind { kMaxTokens, kOracle };

  explicit FixedLengthLookahead(Kind kind) : kind_(kind) {}

  absl::string_view name() const override { return kind_ == Kind::kOracle ? "oracle" : "max_tokens"; }
  void Project(absl::Span<const Resident> residents, const PlanTime& time, absl::Span<double> load) override;
  uint64_t CurveKey(const WaitingView& request, int32_t horizon) override;
  void Curve(const WaitingView& request, absl::Span<double> row) override;
  int64_t Lifetime(const Resident& resident, const PlanTime& time, absl::Span<const int64_t> steps,
                   absl::Span<double> alive) const override;
  int64_t Lifetime(const WaitingView& request, absl::Span<const int64_t> steps,
                   absl::Span<double> alive) override;

 private:
  // Number of steps that the resident stays from the plan's step on. 0 or less: it has ended by then.
  int64_t LifetimeOf(const Resident& resident, const Progress& progress) const;
  int64_t Length(const WaitingView& request) const;

  const Kind kind_;
  // [h]: requests that are active at h - 1 and not at h, and the tokens that they held at the plan's step.
  struct Gone {
    int64_t requests = 0;
    int64_t tokens = 0;
  };
  std::vector<Gone> gone_;
};

}  // namespace bfio::core
