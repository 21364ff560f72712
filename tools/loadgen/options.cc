#include "tools/loadgen/options.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace bfio::loadgen {
namespace {

absl::Status Bad(absl::string_view message) {
  return absl::InvalidArgumentError(message);
}

absl::Status ValidateArrival(const Options& o) {
  const bool open = o.arrival == "trace" || o.arrival == "poisson" || o.arrival == "gamma";
  if (!open && !o.closed_loop()) {
    return Bad(absl::StrCat("--arrival=", o.arrival, " is not one of trace, poisson, gamma, closed"));
  }
  if (!(o.rate >= 0) || std::isinf(o.rate))
    return Bad("--rate must be a number of requests per second, 0 or more");
  if (!(o.time_scale > 0) || std::isinf(o.time_scale)) return Bad("--time_scale must be positive");
  if (!(o.burstiness > 0) || std::isinf(o.burstiness)) return Bad("--burstiness must be positive");
  if (o.closed_loop() && o.rate > 0)
    return Bad("--rate has no meaning with --arrival=closed; use --concurrency");
  if (o.closed_loop() && o.time_scale != 1) return Bad("--time_scale has no meaning with --arrival=closed");
  if ((o.arrival == "poisson" || o.arrival == "gamma") && o.rate == 0) {
    return Bad(absl::StrCat("--arrival=", o.arrival, " needs --rate"));
  }
  if (o.arrival != "gamma" && o.burstiness != 1)
    return Bad("--burstiness has a meaning with --arrival=gamma only");
  if (o.arrival == "trace" && o.trace.empty()) return Bad("--arrival=trace needs --trace");
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const Options& o) {
  if (absl::Status status = ValidateArrival(o); !status.ok()) return status;
  if (!o.trace.empty() && !o.profile.empty()) return Bad("--trace and --profile exclude each other");
  if (o.concurrency < 1) return Bad("--concurrency must be at least 1");
  if (!(o.duration_s >= 0) || std::isinf(o.duration_s))
    return Bad("--duration must be a number of seconds, 0 or more");
  if (o.connections < 1 || o.connections > 1024) return Bad("--connections must be 1 to 1024");
  if (o.max_in_flight < 1) return Bad("--max_in_flight must be at least 1");
  if (o.closed_loop() && o.concurrency > o.max_in_flight)
    return Bad("--concurrency is above --max_in_flight");
  if (o.timeout <= absl::ZeroDuration()) return Bad("--timeout must be positive");
  if (o.connect_timeout <= absl::ZeroDuration()) return Bad("--connect_timeout must be positive");
  return absl::OkStatus();
}

}  // namespace bfio::loadgen
