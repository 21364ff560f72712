#include "tools/sim/serve/serve_workload.h"

#include <algorithm>
#include <cmath>
#include <ranges>

namespace bfio::sim {
namespace {

constexpr double kMostRows = 2048;

// One step of one rank in a perfectly balanced group.
struct LevelStep {
  // Number of requests that end in the step, which equals the number that begin.
  double ends = 0;
  double rows = 0, seconds = 0;
};

LevelStep StepOf(const LengthMoments& moments, const BatchCost& cost, double decodes) {
  LevelStep step;
  step.ends = decodes / (moments.output - 1);
  step.rows = decodes + step.ends * moments.prompt;
  const double beyond = std::max(0.0, step.rows - static_cast<double>(cost.b0_tokens));
  step.seconds = cost.c_s + cost.a_s_per_token * beyond +
                 cost.k1_s_per_pair * step.ends * moments.prompt_squared / 2 +
                 cost.k2_s_per_token * step.ends * moments.decode_context;
  return step;
}

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

LengthMoments WithoutPrompts(LengthMoments moments) {
  moments.prompt = moments.prompt_squared = 1;
  return moments;
}

double PromptSeconds(const Trace& trace, const BatchCost& cost, int64_t budget) {
  double seconds = 0;
  for (const TraceRequest& request : trace.requests) {
    for (int64_t done = 0; done < request.prompt_tokens; done += budget) {
      BatchLoad chunk;
      chunk.AddPrefill(std::min(budget, request.prompt_tokens - done), done);
      seconds += cost.Seconds(chunk) / static_cast<double>(trace.requests.size());
    }
  }
  return seconds;
}

int64_t StepsUntilFilled(const Trace& trace, double share) {
  // Tokens that the first `steps` decodes of all requests read together.
  const auto read = [&](int64_t steps) {
    double tokens = 0;
    for (const TraceRequest& request : trace.requests) {
      const auto decodes = static_cast<double>(std::min(steps, request.output_tokens - 1));
      tokens += decodes * static_cast<double>(request.prompt_tokens) + decodes * decodes / 2;
    }
    return tokens;
  };
  int64_t most = 0;
  for (const TraceRequest& request : trace.requests) most = std::max(most, request.output_tokens);
  const double wanted = share * read(most);
  const auto steps = std::views::iota(int64_t{0}, most);
  return std::ranges::partition_point(steps, [&](int64_t n) { return read(n) < wanted; }) - steps.begin();
}

ServeCapacity CapacityOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks, int64_t slots) {
  ServeCapacity best;
  for (int64_t decodes = 1; decodes <= slots; ++decodes) {
    const LevelStep step = StepOf(moments, cost, static_cast<double>(decodes));
    // One decode per rank is accepted with any number of rows, because the capacity must be positive.
    if (step.rows > kMostRows && decodes > 1) break;
    const double rate = ranks * step.ends / step.seconds;
    if (rate > best.requests_per_s) best = {rate, decodes, step.seconds};
  }
  return best;
}

double MeanOfLargestFactor(int32_t ranks, double jitter) {
  if (jitter <= 0) return 1;
  // E[max]: integrates the factor over cells of the normal distribution. The distribution function of the
  // largest is a power of that of one.
  constexpr double kMost = 9;
  constexpr int kCells = 20'000;
  const auto at_most = [&](double z) { return std::pow(std::erfc(-z / std::sqrt(2.0)) / 2, ranks); };
  double mean = 0, before = 0;
  for (int i = 1; i <= kCells; ++i) {
    const double z = -kMost + 2 * kMost * i / kCells, now = at_most(z);
    mean += (now - before) * std::exp(jitter * (z - kMost / kCells) - jitter * jitter / 2);
    before = now;
  }
  return mean;
}

std::optional<ServeFloor> FloorOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks,
                                  int64_t slots, double arrivals_per_s, double jitter) {
  constexpr int kHalvings = 60;
  const double slowest = MeanOfLargestFactor(ranks, jitter);
  const auto serves = [&](double decodes) {
    const LevelStep step = StepOf(moments, cost, decodes);
    return ranks * step.ends / (slowest * step.seconds) >= arrivals_per_s;
  };
  const ServeCapacity capacity = CapacityOf(moments, cost, ranks, slots);
  // Up to this number, more decodes give a higher rate.
  double low = 0, high = static_cast<double>(capacity.decodes);
  if (!serves(high)) return std::nullopt;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (serves(middle) ? high : low) = middle;
  }
  const double step_s = slowest * StepOf(moments, cost, high).seconds;
  constexpr double kFirstSteps = 1.5;
  return ServeFloor{kFirstSteps * step_s, step_s, (kFirstSteps + moments.output - 1) * step_s};
}

}  // namespace bfio::sim
