#include "common/workload/arrivals.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace bfio {
namespace {

bool Positive(double value) {
  return value > 0 && std::isfinite(value);
}

absl::Status Check(const ArrivalOptions& options, const Trace& trace) {
  if (options.kind != "trace" && options.kind != "poisson" && options.kind != "gamma") {
    return absl::InvalidArgumentError(
        absl::StrCat("arrival '", options.kind, "' is not trace, poisson or gamma"));
  }
  if (!Positive(options.time_scale)) return absl::InvalidArgumentError("time_scale must be positive");
  if (options.kind == "trace") {
    if (!trace.has_arrivals || trace.requests.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", trace.source, "' has no arrival times; use poisson or gamma with a rate"));
    }
    if (!(options.rate >= 0) || std::isinf(options.rate))
      return absl::InvalidArgumentError("rate must not be negative");
    return absl::OkStatus();
  }
  if (!Positive(options.rate)) {
    return absl::InvalidArgumentError(absl::StrCat(options.kind, " arrivals need a positive rate"));
  }
  if (!Positive(options.burstiness)) return absl::InvalidArgumentError("burstiness must be positive");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ArrivalProcess> ArrivalProcess::Create(const ArrivalOptions& options, const Trace& trace,
                                                      uint64_t seed) {
  if (absl::Status status = Check(options, trace); !status.ok()) return status;
  if (options.kind != "trace") {
    const double shape = options.kind == "gamma" ? options.burstiness : 1;
    // Gamma gaps of this shape have mean `shape` in units of the scale.
    return ArrivalProcess(1 / (options.rate * shape * options.time_scale), shape, seed);
  }
  const auto count = static_cast<double>(trace.requests.size());
  const double last = trace.requests.back().arrival_s;
  // One mean gap between the last arrival of a round and the first of the next; a trace with a single arrival
  // time repeats every second.
  const double round_s = last > 0 ? last * count / (count - 1) : 1;
  const double stretch = options.rate > 0 ? count / round_s / options.rate : 1;
  ArrivalProcess process(stretch / options.time_scale, 1, seed);
  process.round_s_ = round_s;
  process.arrivals_.reserve(trace.requests.size());
  for (const TraceRequest& request : trace.requests) process.arrivals_.push_back(request.arrival_s);
  return process;
}

double ArrivalProcess::Next() {
  if (arrivals_.empty()) {
    now_ += shape_ == 1 ? rng_.Exponential() : rng_.Gamma(shape_);
  } else {
    const uint64_t round = next_ / arrivals_.size();
    now_ = static_cast<double>(round) * round_s_ + arrivals_[next_ % arrivals_.size()];
    ++next_;
  }
  return now_ * seconds_per_unit_;
}

}  // namespace bfio
