#include "router/core/admission/request_stages.h"

#include <cmath>

namespace bfio::core {

double StageTokens(const RequestType& type) {
  const auto l = static_cast<double>(type.prompt), o = static_cast<double>(type.output);
  return (o + 1) * (l + o / 2);
}

Segments SegmentsOf(absl::Span<const RequestType> types) {
  std::vector<int64_t> ends;
  for (const RequestType& type : types) ends.push_back(type.output);
  return SegmentsEndingAt(types, ends);
}

Segments SegmentsEndingAt(absl::Span<const RequestType> types, const std::vector<int64_t>& last_stages) {
  Segments segments;
  double prompts = 0;
  for (const RequestType& type : types) {
    segments.rate += type.rate;
    prompts += type.rate * static_cast<double>(type.prompt);
  }
  segments.prompt = static_cast<int64_t>(std::ceil(prompts / segments.rate - 1e-9));
  double reach = segments.rate;
  int64_t before = 0;
  for (const int64_t end : last_stages) {
    // Requests that are longer than the segment before reach this one.
    double arrive = 0;
    for (const RequestType& type : types) arrive += type.output > before ? type.rate : 0;
    segments.last_stage.push_back(end);
    segments.survive.push_back(before == 0 ? 1 : arrive / reach);
    reach = arrive;
    before = end;
  }
  return segments;
}

double SegmentTokens(const Segments& segments, size_t i) {
  const auto first = static_cast<double>(segments.first_stage(i)),
             last = static_cast<double>(segments.last_stage[i]);
  return (last - first + 1) * (static_cast<double>(segments.prompt) + (first + last) / 2);
}

}  // namespace bfio::core
