#include "tests/testing/engine/rank_balancer.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace bfio::testing {
namespace {

constexpr double kWaitingWeight = 6;
constexpr double kFreeKvShare = 0.5;
constexpr absl::Duration kInterval = absl::Milliseconds(100);
constexpr absl::Duration kIntervalWithoutNews = absl::Seconds(5);
// Bound of the time between the ranks' reports of one step.
constexpr absl::Duration kStepSpread = absl::Milliseconds(50);

}  // namespace

RankBalancer::RankBalancer(int ranks, absl::Time now)
    : in_flight_(static_cast<size_t>(ranks)),
      published_(static_cast<size_t>(ranks)),
      counts_(static_cast<size_t>(ranks)),
      published_at_(now),
      waits_since_(now) {}

int RankBalancer::Choose(absl::Time now) {
  PublishDue(now);
  const size_t ranks = published_.size();
  double least = std::numeric_limits<double>::infinity();
  size_t chosen = 0;
  for (size_t i = 0; i < ranks; ++i) {
    const size_t rank = (static_cast<size_t>(start_) + i) % ranks;
    const Counts& counts = published_[rank];
    double score = static_cast<double>(std::max(in_flight_[rank], counts.waiting + counts.running));
    score += static_cast<double>(counts.waiting) * kWaitingWeight * std::max(0.0, counts.kv - kFreeKvShare);
    if (score >= least) continue;
    least = score;
    chosen = rank;
  }
  ++published_[chosen].waiting;
  ++in_flight_[chosen];
  start_ = static_cast<int>((static_cast<size_t>(start_) + 1) % ranks);
  return static_cast<int>(chosen);
}

void RankBalancer::Report(int rank, int64_t step, const Counts& counts, absl::Time now) {
  Counts& mine = counts_[static_cast<size_t>(rank)];
  // A change of the memory in use alone is not published.
  if (mine.waiting == counts.waiting && mine.running == counts.running) return;
  PublishDue(now);
  if (step > step_) {
    if (changed_) whole_step_ = counts_;
    step_ = step;
  }
  mine = counts;
  changed_ = true;
  waits_since_ = now;
}

void RankBalancer::PublishDue(absl::Time now) {
  for (;;) {
    const absl::Duration interval = changed_ ? kInterval : kIntervalWithoutNews;
    const absl::Duration least = whole_step_ ? absl::ZeroDuration() : kStepSpread;
    absl::Time due = std::max(waits_since_ + least, published_at_ + interval);
    if (due > now) return;
    if (whole_step_) {
      published_ = *std::exchange(whole_step_, std::nullopt);
    } else {
      published_ = counts_;
      // An unchanged state is not published again.
      if (!changed_) due = now - (now - due) % kIntervalWithoutNews;
      changed_ = false;
    }
    published_at_ = waits_since_ = due;
  }
}

}  // namespace bfio::testing
