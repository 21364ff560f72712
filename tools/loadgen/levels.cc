#include "tools/loadgen/levels.h"

#include <algorithm>

namespace bfio::loadgen {

Levels::Levels(const std::vector<RateLevel>& plan) {
  for (const RateLevel& level : plan) levels_.push_back({.plan = level});
}

void Levels::Begin(uint32_t level, double start_s) {
  // A level in which nothing was due starts together with the next one, and has no results.
  for (; begun_ <= level && begun_ < levels_.size(); ++begun_) levels_[begun_].start_s = start_s;
}

void Levels::OnSent(uint32_t level) {
  if (level < begun_) ++levels_[level].sent;
}

void Levels::OnNotSent(uint32_t level) {
  if (level < begun_) ++levels_[level].not_sent;
}

void Levels::OnEnded(const EndedRequest& request, bool good) {
  if (begun_ == 0) return;
  request.ForEachMessage([&](double when, double, uint32_t tokens) { CountTokens(when, tokens); });
  if (request.level >= begun_ || request.interrupted) return;
  Level& level = levels_[request.level];
  ++(request.ok() ? level.completed : level.failed);
  if (!request.ok()) return;
  level.good += good;
  level.output_tokens += request.output_tokens;
  level.e2e_s.Add(request.e2e_s);
  if (request.output_tokens == 0) return;
  level.ttft_s.Add(request.ttft_s);
  HalfLevel& half = level.halves[request.due_s >= *level.start_s + level.plan.length_s / 2];
  ++half.requests;
  half.due_sum_s += request.due_s;
  half.ttft_sum_s += request.ttft_s;
  if (request.output_tokens == 1) return;
  level.tpot_s.Add(request.tpot_s());
  half.decode_s += request.e2e_s - request.ttft_s;
  half.decode_tokens += request.output_tokens - 1;
}

void Levels::CountTokens(double when, uint32_t tokens) {
  const auto end = levels_.begin() + static_cast<std::ptrdiff_t>(begun_);
  auto after = std::upper_bound(levels_.begin(), end, when,
                                [](double t, const Level& level) { return t < *level.start_s; });
  if (after == levels_.begin()) return;
  Level& level = *--after;
  const double offset = when - *level.start_s;
  if (offset >= level.plan.length_s / 2 && offset < level.plan.length_s)
    level.tokens_in_second_half += tokens;
}

}  // namespace bfio::loadgen
