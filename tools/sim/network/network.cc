#include "tools/sim/network/network.h"

#include <algorithm>
#include <cmath>

namespace bfio::sim {
namespace {

// Larger means are drawn in pieces, because exp(-mean) would underflow.
constexpr double kPoissonPiece = 500;

}  // namespace

int64_t DrawPoisson(double mean, Rng& rng) {
  int64_t count = 0;
  for (; mean > 0; mean -= kPoissonPiece) {
    // Knuth: the number of uniforms until their product falls below exp(-mean).
    const double least = std::exp(-std::min(mean, kPoissonPiece));
    for (double product = rng.Uniform(); product > least; product *= rng.Uniform()) ++count;
  }
  return count;
}

int64_t TokenLaw::Draw(Rng& rng) const {
  return std::max<int64_t>(1, poisson ? DrawPoisson(mean, rng) : std::llround(mean));
}

double Network::Load(int32_t engine) const {
  double tokens = 0;
  for (const AgentType& type : types) {
    for (const CallType& call : type.calls) {
      if (engine < call.engine || engine >= call.engine + call.choices) continue;
      tokens += type.rate * (call.prefill.mean + call.decode.mean) / call.choices;
    }
  }
  return tokens * BatchTime(token_budget) / static_cast<double>(token_budget);
}

}  // namespace bfio::sim
