// Writes values that the caller owns in the text format of Prometheus. Router and worker already count in the
// thread that owns the state. A scrape takes a copy and writes it here, so that nothing is counted twice and
// no counter is shared between threads. Names and meanings of metrics are in one table per program
// (MetricInfo), from which docs/reference/metrics.md is made. The format is prometheus-cpp's. Threads: one
// thread per object.
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace bfio {

enum class MetricKind { kCounter, kGauge, kHistogram };

// REQUIRES: texts are literals, which outlive every Exposition.
struct MetricInfo {
  // Ends with its unit (_seconds, _tokens), and with _total if it is a counter.
  absl::string_view name;
  MetricKind kind;
  // The labels of its series, separated by ", "; empty when there is a single series.
  absl::string_view label;
  absl::string_view help;
};

// The data of a histogram's series; counts has one element more than bounds and is not cumulative.
struct Buckets {
  absl::Span<const double> bounds;
  absl::Span<const uint64_t> counts;
  double sum = 0;
};

class Exposition {
 public:
  using LabelValues = std::initializer_list<absl::string_view>;

  // Adds the value of a counter or gauge. REQUIRES: a value for each of the metric's labels.
  void Add(const MetricInfo& info, double value, LabelValues labels = {});
  void AddHistogram(const MetricInfo& info, const Buckets& buckets, LabelValues labels = {});
  // For a metric with one label.
  void Add(const MetricInfo& info, double value, absl::string_view label) { Add(info, value, {label}); }
  void AddHistogram(const MetricInfo& info, const Buckets& buckets, absl::string_view label) {
    AddHistogram(info, buckets, {label});
  }

  // The text of all series, families in the order of their first Add.
  std::string Text() const;

 private:
  prometheus::ClientMetric& Series(const MetricInfo& info, LabelValues labels);

  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace bfio
