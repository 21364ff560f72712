// Networks of engines that requests of several calls walk through: the words.
//
// Purpose: agents as "Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents", Section 4,
// sees them: a request is a set of calls, each to one engine, some after others (a sequence, a fork with its
// join, a cycle back to an engine it has seen). Every engine forms batches of its own (worker/scheduler).
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

// How many tokens a call has of a kind: the mean, rounded, or Poisson; never less than one.
struct TokenLaw {
  double mean = 1;
  bool poisson = false;

  int64_t Draw(Rng& rng) const;
};

struct CallType {
  // Engines engine .. engine + choices - 1 can run it; the routing rule takes one of several.
  int32_t engine = 0;
  int32_t choices = 1;
  TokenLaw prefill, decode;
  // Calls of the same request that must have ended before, by index, each below its own.
  std::vector<int32_t> after;
};

struct AgentType {
  std::string name;
  // Poisson arrivals per unit of time.
  double rate = 0;
  std::vector<CallType> calls;
  // Instead of Poisson: arrivals 1 / rate apart, the first after that time.
  bool evenly = false;
};

struct Network {
  int32_t engines = 1;
  // b: tokens of a batch.
  int64_t token_budget = 512;
  // How long a batch of so many tokens takes. Empty: every batch takes one slot, and everything begins and
  // ends at whole slots.
  std::function<double(int64_t tokens)> batch_time;
  std::vector<AgentType> types;

  bool slotted() const { return !batch_time; }
  double BatchTime(int64_t tokens) const { return slotted() ? 1 : batch_time(tokens); }
  // Tokens that come to this engine in the time of a full batch, against those of one: stable at most below
  // 1. A call with choices is shared out evenly.
  double Load(int32_t engine) const;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_NETWORK_H_
