#include "router/core/lookahead/fixed_length.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {

absl::string_view FixedLengthLookahead::name() const {
  return kind_ == Kind::kOracle ? "oracle" : kind_ == Kind::kInterval ? "interval" : "max_tokens";
}

int64_t FixedLengthLookahead::Most(int64_t predicted, int64_t generated) const {
  // The bound keeps the product within 64 bits.
  const double more = std::floor(static_cast<double>(predicted + generated) * error_ + 1e-9);
  return predicted + static_cast<int64_t>(std::min(more, 1e15));
}

int64_t FixedLengthLookahead::StayOf(int64_t length, const Resident& resident, const Standing& standing) {
  if (resident.dropped) return 0;
  const int64_t run = standing.known_age - resident.generated_tokens;
  const int64_t planned = standing.plan_age - resident.generated_tokens;
  // It has exceeded its predicted length and is still active: expect it to exceed that by as much again.
  if (length <= run) length = std::max(run, planned) + 1 + (run - length);
  return std::min(standing.steps_left, length - planned);
}

int64_t FixedLengthLookahead::Expected(const Resident& resident, const Standing& standing) const {
  const int64_t run = standing.known_age - resident.generated_tokens;
  if (kind_ == Kind::kInterval && resident.expected_tokens <= run) return Longest(resident, standing);
  return kind_ == Kind::kMaxTokens ? Longest(resident, standing)
                                   : StayOf(resident.expected_tokens, resident, standing);
}

int64_t FixedLengthLookahead::Longest(const Resident& resident, const Standing& standing) const {
  if (kind_ == Kind::kMaxTokens) return resident.dropped ? 0 : standing.steps_left;
  return StayOf(Most(resident.expected_tokens, resident.generated_tokens), resident, standing);
}

void FixedLengthLookahead::Project(absl::Span<const Resident> residents, const PlanTime& time,
                                   absl::Span<double> load) {
  const int64_t columns = static_cast<int64_t>(load.size());
  gone_.assign(load.size() + 1, {});
  int64_t tokens = 0, requests = 0;
  for (const Resident& resident : residents) {
    const Standing standing = StandingOf(resident, time);
    const int64_t stay = std::clamp<int64_t>(Expected(resident, standing), 0, columns);
    tokens += standing.tokens;
    ++requests;
    gone_[stay].tokens += standing.tokens;
    ++gone_[stay].requests;
  }
  for (int64_t h = 0; h < columns; ++h) {
    tokens -= gone_[h].tokens;
    requests -= gone_[h].requests;
    load[h] = static_cast<double>(tokens + requests * h);
  }
}

int64_t FixedLengthLookahead::Length(const WaitingView& request) const {
  if (kind_ == Kind::kMaxTokens) return request.max_new_tokens;
  return std::clamp<int64_t>(request.predicted_output_tokens.value_or(request.max_new_tokens), 1,
                             std::max<int64_t>(1, request.max_new_tokens));
}

int64_t FixedLengthLookahead::Longest(const WaitingView& request) const {
  return std::min(std::max<int64_t>(1, request.max_new_tokens),
                  Most(Length(request), request.generated_tokens));
}

uint64_t FixedLengthLookahead::CurveKey(const WaitingView& request, int32_t horizon) {
  const auto within = [&](int64_t steps) {
    return static_cast<uint64_t>(std::clamp<int64_t>(steps, 1, int64_t{horizon} + 1));
  };
  // Requests of one length may stay for different times.
  return within(Longest(request)) << 32 | within(Length(request));
}

void FixedLengthLookahead::Curve(const WaitingView& request, absl::Span<double> row) {
  const int64_t length = Length(request);
  for (int64_t h = 0; h < static_cast<int64_t>(row.size()); ++h) row[h] = h == 0 || h < length ? 1 : 0;
}

int64_t FixedLengthLookahead::Stay(const Resident& resident, const PlanTime& time, absl::Span<const int64_t>,
                                   absl::Span<double> alive) const {
  std::fill(alive.begin(), alive.end(), 1);
  return std::max<int64_t>(0, Longest(resident, StandingOf(resident, time)));
}

int64_t FixedLengthLookahead::Stay(const WaitingView& request, absl::Span<const int64_t>,
                                   absl::Span<double> alive) {
  std::fill(alive.begin(), alive.end(), 1);
  return Longest(request);
}

}  // namespace bfio::core
