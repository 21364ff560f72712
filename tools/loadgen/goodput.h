// Goodput: the number of requests that meet their latency objectives.
//
// Purpose: limits on TTFT, TPOT and E2E ("ttft:0.5,tpot:0.05,e2e:30", in seconds; vLLM's benchmark uses
// milliseconds), and the number of requests that meet all of them. A request of one token has no TPOT and
// meets any limit on it; a failed request meets no limit. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/loadgen/ended_request.h"

namespace bfio::loadgen {

// Limits in seconds, inclusive.
struct GoodputLimits {
  std::optional<double> ttft_s, tpot_s, e2e_s;

  bool any() const { return ttft_s.has_value() || tpot_s.has_value() || e2e_s.has_value(); }
};

// "" is no limit. "e2el", as vLLM calls it, is the same as "e2e". INVALID_ARGUMENT with one line otherwise.
absl::StatusOr<GoodputLimits> ParseGoodput(absl::string_view text);

class Goodput {
 public:
  explicit Goodput(const GoodputLimits& limits = {}) : limits_(limits) {}

  // True if the request completed and meets all limits; without limits, if it completed. Interrupted requests
  // are not counted.
  bool Add(const EndedRequest& request);

  const GoodputLimits& limits() const { return limits_; }
  uint64_t good() const { return good_; }
  // Completed requests beyond each limit; one request may exceed several.
  uint64_t missed_ttft() const { return missed_ttft_; }
  uint64_t missed_tpot() const { return missed_tpot_; }
  uint64_t missed_e2e() const { return missed_e2e_; }

 private:
  GoodputLimits limits_;
  uint64_t good_ = 0;
  uint64_t missed_ttft_ = 0, missed_tpot_ = 0, missed_e2e_ = 0;
};

}  // namespace bfio::loadgen
