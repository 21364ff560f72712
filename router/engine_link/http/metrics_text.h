// Prometheus' text format, as engines write it at /metrics: names, labels and values, without types and help.
// Malformed lines are skipped. Pure; any thread.
#ifndef BFIO_ROUTER_ENGINE_LINK_HTTP_METRICS_TEXT_H_
#define BFIO_ROUTER_ENGINE_LINK_HTTP_METRICS_TEXT_H_

#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace bfio::router {

struct MetricSample {
  absl::string_view name;
  // Names and values as written, without quotes; escapes are kept.
  std::vector<std::pair<absl::string_view, absl::string_view>> labels;
  double value = 0;

  // Empty: no such label.
  absl::string_view label(absl::string_view name) const;
};

// Calls `on` for each sample whose name begins with `prefix`. The texts are valid during the call.
void ReadMetrics(absl::string_view text, absl::string_view prefix,
                 absl::FunctionRef<void(const MetricSample&)> on);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_HTTP_METRICS_TEXT_H_
