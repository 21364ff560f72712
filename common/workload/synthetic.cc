#include "common/workload/synthetic.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "common/workload/trace_row.h"

namespace bfio {
namespace {

constexpr double kPromptMean = 3200, kPromptDeviation = 2600;
constexpr double kOutputMean = 1200, kOutputDeviation = 700;
constexpr double kCorrelation = -0.1;

Trace Empty(std::string source, int64_t requests) {
  Trace trace;
  trace.source = std::move(source);
  trace.format = "synthetic";
  trace.requests.resize(static_cast<size_t>(requests));
  return trace;
}

Trace UniformPrompts(std::string source, int64_t lo, int64_t hi, int64_t requests, Rng rng) {
  Trace trace = Empty(std::move(source), requests);
  for (TraceRequest& request : trace.requests) {
    request.prompt_tokens = lo + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(hi - lo + 1)));
  }
  return trace;
}

// By inversion of P(o > k) = (1 - p)^k. For p above about 1e-7 the length never exceeds the limit of a trace.
int64_t Geometric(double p, Rng& rng) {
  if (p >= 1) return 1;
  const double draw = std::floor(rng.Exponential() / -std::log1p(-p));
  return 1 + static_cast<int64_t>(std::min(draw, static_cast<double>(kMaxTraceTokens - 1)));
}

}  // namespace

Trace UniformPromptsConstantOutputs(int64_t lo, int64_t hi, int64_t output_tokens, int64_t requests,
                                    uint64_t seed) {
  Trace trace = UniformPrompts(absl::StrCat("prompts ", lo, "..", hi, ", outputs ", output_tokens), lo, hi,
                               requests, Rng(seed).Fork(0));
  for (TraceRequest& request : trace.requests) request.output_tokens = output_tokens;
  return trace;
}

Trace UniformPromptsGeometricOutputs(int64_t lo, int64_t hi, double p, int64_t requests, uint64_t seed) {
  Trace trace = UniformPrompts(absl::StrCat("prompts ", lo, "..", hi, ", outputs geometric, p ", p), lo, hi,
                               requests, Rng(seed).Fork(0));
  Rng outputs = Rng(seed).Fork(1);
  for (TraceRequest& request : trace.requests) request.output_tokens = Geometric(p, outputs);
  return trace;
}

Trace TruncatedNormalLengths(int64_t requests, uint64_t seed) {
  Trace trace = Empty("truncated bivariate normal", requests);
  Rng rng = Rng(seed).Fork(0);
  for (TraceRequest& request : trace.requests) {
    double prompt = 0, output = 0;
    while (prompt < 1 || output < 1) {
      const double first = rng.Normal(), second = rng.Normal();
      prompt = kPromptMean + kPromptDeviation * first;
      output = kOutputMean + kOutputDeviation *
                                 (kCorrelation * first + std::sqrt(1 - kCorrelation * kCorrelation) * second);
    }
    request.prompt_tokens = std::llround(prompt);
    request.output_tokens = std::llround(output);
  }
  return trace;
}

}  // namespace bfio
