#include "tools/sim/serve/serve_workload.h"

#include <algorithm>

namespace bfio::sim {
namespace {

constexpr double kMostRows = 2048;

}  // namespace

LengthMoments MomentsOf(const Trace& trace) {
  LengthMoments moments;
  const auto requests = static_cast<double>(trace.requests.size());
  for (const TraceRequest& request : trace.requests) {
    const auto prompt = static_cast<double>(request.prompt_tokens);
    const auto decodes = static_cast<double>(request.output_tokens - 1);
    moments.prompt += prompt / requests;
    moments.output += (decodes + 1) / requests;
    moments.prompt_squared += prompt * prompt / requests;
    moments.decode_context += (decodes * prompt + decodes * decodes / 2) / requests;
  }
  return moments;
}

ServeCapacity CapacityOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks, int64_t slots) {
  ServeCapacity best;
  for (int64_t decodes = 1; decodes <= slots; ++decodes) {
    const double ends = static_cast<double>(decodes) / (moments.output - 1);
    const double rows = static_cast<double>(decodes) + ends * moments.prompt;
    // The first N is taken however many prompts go with it: a group that serves nothing has no load.
    if (rows > kMostRows && decodes > 1) break;
    const double beyond = std::max(0.0, rows - static_cast<double>(cost.b0_tokens));
    const double step_s = cost.c_s + cost.a_s_per_token * beyond +
                          cost.k1_s_per_pair * ends * moments.prompt_squared / 2 +
                          cost.k2_s_per_token * ends * moments.decode_context;
    const double rate = ranks * ends / step_s;
    if (rate > best.requests_per_s) best = {rate, decodes, step_s};
  }
  return best;
}

}  // namespace bfio::sim
