// Networks of engines through which requests of several calls pass: the data types.
//
// Purpose: agents as in "Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents", Section
// 4: a request is a set of calls, each to one engine, some of which depend on others (a sequence, a fork with
// its join, a cycle back to an engine used before). Every engine forms its own batches (worker/scheduler).
// Plain data. Time is in the unit of Network::batch_time, or in slots. Threads: any.
#ifndef BFIO_TOOLS_SIM_NETWORK_NETWORK_H_
#define BFIO_TOOLS_SIM_NETWORK_NETWORK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/rng.h"

namespace bfio::sim {

// A Poisson number with this mean. REQUIRES: mean >= 0. Cost: O(mean).
int64_t DrawPoisson(double mean, Rng& rng);

// Distribution of the number of prompt or output tokens of a call: the mean, rounded, or Poisson; at least
// one.
struct TokenLaw {
  double mean = 1;
  bool poisson = false;

  int64_t Draw(Rng& rng) const;
};

struct CallType {
  // Engines engine .. engine + choices - 1 can run it; with several the routing rule chooses.
  int32_t engine = 0;
  int32_t choices = 1;
  TokenLaw prefill, decode;
  // Indices of calls of the same request that must have ended before; each is below the call's own index.
  std::vector<int32_t> after;
};

struct AgentType {
  std::string name;
  // Poisson arrivals per unit of time.
  double rate = 0;
  std::vector<CallType> calls;
  // Instead of Poisson: arrivals 1 / rate apart, the first at time 1 / rate.
  bool evenly = false;
};

struct Network {
  int32_t engines = 1;
  // b: the token budget of a batch.
  int64_t token_budget = 512;
  // Duration of a batch of this many tokens. Empty: every batch takes one slot, and all events are at whole
  // slots.
  std::function<double(int64_t tokens)> batch_time;
  std::vector<AgentType> types;

  bool slotted() const { return !batch_time; }
  double BatchTime(int64_t tokens) const { return slotted() ? 1 : batch_time(tokens); }
  // Tokens that arrive at this engine in the time of a full batch, over the tokens of one: below 1 if the
  // engine is stable. A call with choices counts evenly for all of them.
  double Load(int32_t engine) const;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_NETWORK_H_
