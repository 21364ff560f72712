// Moments of a trace's lengths.
//
// Purpose: tests of profiles compare them with published or computed values. Threads:
// any, no state.
#ifndef BFIO_TESTS_TESTING_LENGTH_MOMENTS_H_
#define BFIO_TESTS_TESTING_LENGTH_MOMENTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/workload/trace.h"

namespace bfio {

struct TraceMoments {
  double mean = 0, deviation = 0, median = 0, p95 = 0, smallest = 0, largest = 0;
};

// REQUIRES: trace.requests is not empty.
inline TraceMoments LengthMoments(const Trace& trace, int64_t TraceRequest::*field) {
  std::vector<int64_t> values;
  double sum = 0, squares = 0;
  for (const TraceRequest& request : trace.requests) {
    const double value = static_cast<double>(request.*field);
    values.push_back(request.*field);
    sum += value;
    squares += value * value;
  }
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const double count = static_cast<double>(n), mean = sum / count;
  return {mean,
          std::sqrt(std::max(0.0, squares / count - mean * mean)),
          static_cast<double>(values[n / 2]),
          static_cast<double>(values[n * 95 / 100]),
          static_cast<double>(values.front()),
          static_cast<double>(values.back())};
}

// Pearson correlation of prompt and output lengths. REQUIRES: neither column is constant.
inline double LengthCorrelation(const Trace& trace) {
  const TraceMoments prompt = LengthMoments(trace, &TraceRequest::prompt_tokens);
  const TraceMoments output = LengthMoments(trace, &TraceRequest::output_tokens);
  double products = 0;
  for (const TraceRequest& request : trace.requests) {
    products += (static_cast<double>(request.prompt_tokens) - prompt.mean) *
                (static_cast<double>(request.output_tokens) - output.mean);
  }
  return products / static_cast<double>(trace.requests.size()) / prompt.deviation / output.deviation;
}

}  // namespace bfio

#endif  // BFIO_TESTS_TESTING_LENGTH_MOMENTS_H_
