// Results of each level of an arrival profile (rate_profile.h).
//
// Purpose: the points of the curve on which the knee is searched. A request belongs to the level in which it
// was due, whenever it ends. Pure; one thread at a time (the runner guards it). Times in seconds after the
// start of the run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/stats/histogram.h"
#include "tools/loadgen/ended_request.h"
#include "tools/loadgen/rate_profile.h"

namespace bfio::loadgen {

// Sums over completed requests that were due in one half of a level.
struct HalfLevel {
  uint64_t requests = 0;
  double due_sum_s = 0;
  double ttft_sum_s = 0;
  // Time and tokens after the first token.
  double decode_s = 0;
  uint64_t decode_tokens = 0;
};

struct Level {
  RateLevel plan;
  // Empty before the level has begun.
  std::optional<double> start_s;
  // Requests sent, and requests due but not sent in time.
  uint64_t sent = 0;
  uint64_t not_sent = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  // Requests within the goodput limits.
  uint64_t good = 0;
  // Output tokens of completed requests.
  uint64_t output_tokens = 0;
  HalfLevel halves[2];
  // Tokens of any request that arrived in the second half of the level.
  uint64_t tokens_in_second_half = 0;
  Histogram ttft_s, tpot_s, e2e_s;

  uint64_t due() const { return sent + not_sent; }
  // Requests per second that were actually due.
  double offered_rate() const { return static_cast<double>(due()) / plan.length_s; }
  double tokens_per_s() const { return static_cast<double>(tokens_in_second_half) * 2 / plan.length_s; }
};

class Levels {
 public:
  // Without levels: nothing is counted.
  Levels() = default;
  explicit Levels(const std::vector<RateLevel>& plan);

  // The methods below take levels that have begun, in ascending order.
  void Begin(uint32_t level, double start_s);
  void OnSent(uint32_t level);
  void OnNotSent(uint32_t level);
  // `good`: the request meets the goodput limits.
  void OnEnded(const EndedRequest& request, bool good);

  const std::vector<Level>& levels() const { return levels_; }

 private:
  void CountTokens(double when, uint32_t tokens);

  std::vector<Level> levels_;
  // Number of levels that have begun; they begin in order.
  size_t begun_ = 0;
};

}  // namespace bfio::loadgen
