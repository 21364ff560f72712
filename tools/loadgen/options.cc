#include "tools/loadgen/options.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"

namespace bfio::loadgen {
namespace {

absl::Status Bad(absl::string_view message) {
  return absl::InvalidArgumentError(message);
}

// Whether the rate changes during the run.
bool Profile(const Options& o) {
  return o.arrival == "ramp" || o.arrival == "step" || o.arrival == "sweep";
}

absl::Status ValidateProfile(const Options& o) {
  if (!(o.rate_to >= 0) || std::isinf(o.rate_to))
    return Bad("--rate_to must be a number of requests per second, 0 or more");
  if (!(o.step_duration_s > 0) || std::isinf(o.step_duration_s))
    return Bad("--step_duration must be a positive number of seconds");
  if (o.arrival != "ramp" && o.rate_to > 0) return Bad("--rate_to can be used only with --arrival=ramp");
  const bool steps = o.arrival == "step" || o.sweep();
  if (!steps && !o.rates.empty()) return Bad("--rates can be used only with --arrival=step or sweep");
  if (!Profile(o)) return absl::OkStatus();
  const std::string with = absl::StrCat(" with --arrival=", o.arrival);
  if (o.time_scale != 1) return Bad(absl::StrCat("--time_scale cannot be used", with));
  if (o.requests > 0)
    return Bad(absl::StrCat("--requests cannot be used", with, ", which ends after a fixed time"));
  if (!steps) {
    if (!(o.duration_s > 0)) return Bad("--arrival=ramp needs --duration");
    if (o.rate == o.rate_to) return Bad("--arrival=ramp needs different values of --rate and --rate_to");
    return absl::OkStatus();
  }
  if (o.rates.empty()) return Bad(absl::StrCat("--arrival=", o.arrival, " needs --rates"));
  if (o.rate > 0) return Bad(absl::StrCat("--rate cannot be used", with, "; use --rates"));
  if (o.duration_s > 0) return Bad(absl::StrCat("--duration cannot be used", with, "; use --step_duration"));
  if (o.sweep() && !std::is_sorted(o.rates.begin(), o.rates.end()))
    return Bad("--rates must be in ascending order with --arrival=sweep");
  return absl::OkStatus();
}

absl::Status ValidateAgents(const Options& o) {
  if (!o.agents.empty() && o.max_new_tokens > 0) return Bad("--max_new_tokens cannot be used with --agents");
  const auto within = [](absl::Duration value, absl::Duration most) {
    return value >= absl::ZeroDuration() && value <= most;
  };
  if (!within(o.ttft_objective, absl::Hours(1))) return Bad("--ttft_objective must be within 0..1h");
  if (!within(o.agent_timeout, absl::Hours(24))) return Bad("--agent_timeout must be within 0..24h");
  if (o.agent_timeout > absl::ZeroDuration() && o.agents.empty())
    return Bad("--agent_timeout needs --agents");
  if (o.agents.empty() || !Profile(o)) return absl::OkStatus();
  return Bad(absl::StrCat("--agents cannot be used with --arrival=", o.arrival));
}

absl::Status ValidateArrival(const Options& o) {
  const bool open = o.arrival == "trace" || o.arrival == "poisson" || o.arrival == "gamma";
  if (!open && !Profile(o) && !o.closed_loop()) {
    return Bad(absl::StrCat("--arrival=", o.arrival,
                            " is not one of trace, poisson, gamma, ramp, step, sweep, closed"));
  }
  if (!(o.rate >= 0) || std::isinf(o.rate))
    return Bad("--rate must be a number of requests per second, 0 or more");
  if (!(o.time_scale > 0) || std::isinf(o.time_scale)) return Bad("--time_scale must be positive");
  if (!(o.burstiness > 0) || std::isinf(o.burstiness)) return Bad("--burstiness must be positive");
  if (o.closed_loop() && o.rate > 0)
    return Bad("--rate cannot be used with --arrival=closed; use --concurrency");
  if (o.closed_loop() && o.time_scale != 1) return Bad("--time_scale cannot be used with --arrival=closed");
  if ((o.arrival == "poisson" || o.arrival == "gamma") && o.rate == 0) {
    return Bad(absl::StrCat("--arrival=", o.arrival, " needs --rate"));
  }
  if (o.arrival != "gamma" && !Profile(o) && o.burstiness != 1)
    return Bad("--burstiness can be used only with --arrival=gamma, ramp, step or sweep");
  if (o.arrival == "trace" && o.trace.empty()) return Bad("--arrival=trace needs --trace");
  return ValidateProfile(o);
}

}  // namespace

std::vector<RateLevel> Options::levels() const {
  if (arrival == "ramp") return RampLevels(rate, rate_to, duration_s);
  if (arrival == "step" || sweep()) return StepLevels(rates, step_duration_s);
  return {};
}

KneeCriteria Options::knee_criteria() const {
  return {.attainment = goodput.any() ? std::optional<double>(attainment) : std::nullopt};
}

double Options::due_end_s() const {
  if (sweep()) return 0;
  return arrival == "step" ? step_duration_s * static_cast<double>(rates.size()) : duration_s;
}

absl::Status Validate(const Options& o) {
  if (absl::Status status = ValidateArrival(o); !status.ok()) return status;
  if (absl::Status status = ValidateAgents(o); !status.ok()) return status;
  if (!o.trace.empty() && !o.profile.empty()) return Bad("--trace and --profile cannot be used together");
  if (o.concurrency < 1) return Bad("--concurrency must be at least 1");
  if (!(o.duration_s >= 0) || std::isinf(o.duration_s))
    return Bad("--duration must be a number of seconds, 0 or more");
  if (o.timeout <= absl::ZeroDuration()) return Bad("--timeout must be positive");
  if (o.connect_timeout <= absl::ZeroDuration()) return Bad("--connect_timeout must be positive");
  return absl::OkStatus();
}

}  // namespace bfio::loadgen
