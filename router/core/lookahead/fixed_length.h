// The lookaheads oracle, interval and max_tokens: every request's length, or a bound of it, counts as known.
//
//   oracle      o = predicted_output_tokens, where given, else max_new_tokens. Exact when the prediction is
//               (the simulator's). A request that has exceeded its prediction by n tokens is expected to
//               generate n more.
//   interval    o is within a share E of predicted_output_tokens: |o - p| <= E p. Memory is counted for the
//               upper end (Stay), so that it suffices as long as the predictions are right within E; "Online
//               Scheduling for LLM Inference with KV Cache Constraints" takes the lower end, for which memory
//               may not suffice. Loads are counted for p, or for the upper end once a request has generated p
//               tokens. Without a prediction: max_new_tokens. A request that exceeds its upper end is treated
//               as oracle treats one that exceeds its prediction. All intervals have the same relative width,
//               so lower and upper ends give the same order of requests.
//   max_tokens  o = max_new_tokens, which admission reserves. Never too short.
//
// Cost: one pass over the residents and one over h (a difference array), integers throughout. Threads: one,
// as for every Lookahead.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_FIXED_LENGTH_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_FIXED_LENGTH_H_

#include <vector>

#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

class FixedLengthLookahead final : public Lookahead {
 public:
  enum class Kind { kMaxTokens, kOracle, kInterval };

  // `error`: E of kInterval, at least 0.
  explicit FixedLengthLookahead(Kind kind, double error = 0) : kind_(kind), error_(error) {}

  absl::string_view name() const override;
  void Project(absl::Span<const Resident> residents, const PlanTime& time, absl::Span<double> load) override;
  uint64_t CurveKey(const WaitingView& request, int32_t horizon) override;
  void Curve(const WaitingView& request, absl::Span<double> row) override;
  int64_t Stay(const Resident& resident, const PlanTime& time, absl::Span<const int64_t> steps,
               absl::Span<double> alive) const override;
  int64_t Stay(const WaitingView& request, absl::Span<const int64_t> steps,
               absl::Span<double> alive) override;

 private:
  // The upper end of the tokens that a request has left, from `predicted`, the prediction of these tokens,
  // and the tokens that it generated in earlier placements.
  int64_t Most(int64_t predicted, int64_t generated) const;
  // Number of steps that the resident stays from the plan's step on if its length is `length`. If it has
  // exceeded `length` already, it is expected to exceed it by as much again. 0 or less: it has ended by then.
  static int64_t StayOf(int64_t length, const Resident& resident, const Standing& standing);
  // StayOf with the expected length, and with the largest length.
  int64_t Expected(const Resident& resident, const Standing& standing) const;
  int64_t Longest(const Resident& resident, const Standing& standing) const;
  // The expected and the largest length of a waiting request.
  int64_t Length(const WaitingView& request) const;
  int64_t Longest(const WaitingView& request) const;

  const Kind kind_;
  const double error_;
  // [h]: requests that are active at h - 1 and not at h, and the tokens that they held at the plan's step.
  struct Gone {
    int64_t requests = 0;
    int64_t tokens = 0;
  };
  std::vector<Gone> gone_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_FIXED_LENGTH_H_
