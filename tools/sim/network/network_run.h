// Runs a network of engines and records its backlog over time.
//
// Purpose: the experiment behind the statements on stability in docs/agents.md: Poisson arrivals of agents,
// engines that each form batches, and a rule for the order of calls. Deterministic for its seed. Threads:
// any, no state.
#ifndef BFIO_TOOLS_SIM_NETWORK_NETWORK_RUN_H_
#define BFIO_TOOLS_SIM_NETWORK_NETWORK_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/sim/network/network.h"

namespace bfio::sim {

struct LaneBatch;

// The order in which an engine serves calls. The first two are priorities of classes: the last class gets
// what the others leave of a batch.
enum class CallOrder {
  // The fewer calls follow it, the more urgent a call: the order that is unstable in Rybko and Stolyar's
  // network.
  kExitFirst,
  // The reverse of kExitFirst.
  kEntryFirst,
  // First come, first served at the engine.
  kCallAge,
  // The agent that has been in the network longest goes first.
  kParentAge,
  // The agent that is due first goes first: the router's rule (router/core/agents/senior_step.h).
  kParentDue,
};
// "exit_first" and so on.
absl::string_view CallOrderName(CallOrder order);

// Rule by which a call with several engines chooses one when it joins.
enum class Routing { kRandom, kFewestCalls, kFewestTokens };

struct NetworkOptions {
  CallOrder order = CallOrder::kParentDue;
  Routing routing = Routing::kFewestTokens;
  // A scheduler of worker/scheduler. One that is not work conserving can only be used with orders of one lane
  // (the last three).
  std::string scheduler = "sarathi";
  // Maximum number of calls in progress at an engine; 0: no limit.
  int64_t slots = 0;
  double horizon = 1000;
  // Interval at which the tokens in the network are recorded.
  double sample_every = 1;
  uint64_t seed = 1;
  // Called from time to time; the run ends when it returns false. May be empty.
  std::function<bool()> go_on;
  // Called with every batch of every engine, lane by lane, as it starts (engine.h). May be empty.
  std::function<void(const LaneBatch&)> watch;
};

struct NetworkRun {
  // Sample i, at i * sample_every: tokens not yet computed of calls that wait at engines.
  std::vector<int64_t> tokens;
  // Number of agents in the network at the same times.
  std::vector<int64_t> agents;
  int64_t peak_tokens = 0;
  // Agents that arrived, that ended and that were present at the end; tokens of the calls that joined an
  // engine, of computed batches, and remaining at the end, counted call by call.
  int64_t arrived = 0, ended = 0, agents_left = 0;
  int64_t tokens_joined = 0, tokens_computed = 0, tokens_left = 0;
  // An agent that arrived in the second half and ended; the latency runs from its arrival to the end of its
  // last call.
  struct Ended {
    // Index in Network::types.
    int32_t type = 0;
    double latency = 0;
    // Tokens decoded on the agent's longest path.
    int64_t path_tokens = 0;
  };
  std::vector<Ended> finished;
  // Sum of Engine::short_batches.
  int64_t short_batches = 0;

  // Largest sample of [from, to), in samples. REQUIRES: from < to <= tokens.size().
  int64_t PeakOf(size_t from, size_t to) const;
};

// INVALID_ARGUMENT for what CheckNetwork (network_check.h) refuses and, from the batch where it happens, for
// a batch_time that is not positive and finite.
absl::StatusOr<NetworkRun> RunNetwork(const Network& network, const NetworkOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_NETWORK_RUN_H_
