#include "common/telemetry/metrics/exposition.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_split.h"

namespace bfio {
namespace {

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter: return prometheus::MetricType::Counter;
    case MetricKind::kGauge: return prometheus::MetricType::Gauge;
    case MetricKind::kHistogram: return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

}  // namespace

prometheus::ClientMetric& Exposition::Series(const MetricInfo& info, LabelValues labels) {
  const auto same = [&](const prometheus::MetricFamily& family) { return family.name == info.name; };
  auto family = std::find_if(families_.rbegin(), families_.rend(), same);
  if (family == families_.rend()) {
    prometheus::MetricFamily created;
    created.name = std::string(info.name);
    created.help = std::string(info.help);
    created.type = TypeOf(info.kind);
    families_.push_back(std::move(created));
    family = families_.rbegin();
  }
  prometheus::ClientMetric& series = family->metric.emplace_back();
  auto value = labels.begin();
  for (const absl::string_view label : absl::StrSplit(info.label, ", ", absl::SkipEmpty())) {
    series.label.push_back({std::string(label), std::string(*value++)});
  }
  return series;
}

void Exposition::Add(const MetricInfo& info, double value, LabelValues labels) {
  prometheus::ClientMetric& series = Series(info, labels);
  (info.kind == MetricKind::kCounter ? series.counter.value : series.gauge.value) = value;
}

void Exposition::AddHistogram(const MetricInfo& info, const Buckets& buckets, LabelValues labels) {
  prometheus::ClientMetric::Histogram& histogram = Series(info, labels).histogram;
  uint64_t cumulative = 0;
  for (size_t i = 0; i < buckets.counts.size(); ++i) {
    cumulative += buckets.counts[i];
    const double bound =
        i < buckets.bounds.size() ? buckets.bounds[i] : std::numeric_limits<double>::infinity();
    histogram.bucket.push_back({cumulative, bound});
  }
  histogram.sample_count = cumulative;
  histogram.sample_sum = buckets.sum;
}

std::string Exposition::Text() const {
  return prometheus::TextSerializer().Serialize(families_);
}

}  // namespace bfio
