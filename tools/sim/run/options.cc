#include "tools/sim/run/options.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::sim {
namespace {

absl::Status InRange(const char* flag, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, " must lie between ", low, " and ", high));
}

}  // namespace

absl::Status Validate(const SimOptions& options) {
  if (options.mode != "overload" && options.mode != "arrivals") {
    return absl::InvalidArgumentError(absl::StrCat("--mode=", options.mode, ": choose overload or arrivals"));
  }
  if (const auto lookahead = core::MakeLookahead(options.lookahead); !lookahead.ok()) {
    return lookahead.status();
  }
  absl::Status status;
  status.Update(InRange("workers", options.workers, 1, 65536));
  status.Update(InRange("batch", options.batch, 1, 1 << 20));
  status.Update(InRange("reveal", static_cast<double>(options.reveal), 1, 1 << 20));
  status.Update(InRange("max_new_tokens", static_cast<double>(options.max_new_tokens), 0, 1e9));
  status.Update(InRange("steps", static_cast<double>(options.steps), 1, 1e9));
  status.Update(InRange("load", options.load, 1e-9, 1e9));
  status.Update(InRange("c", options.cost.c_s, 1e-9, 1e6));
  status.Update(InRange("tl", options.cost.tl_s_per_token, 0, 1e6));
  return status;
}

}  // namespace bfio::sim
