// Runs a network of engines and records how much waits in it over time.
//
// Purpose: the experiment behind every statement on stability: Poisson arrivals of agents, engines with a
// batch former each, and a rule for whose call goes first. Deterministic for its seed. Threads: any, no
// state.
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

// The order in which an engine works on calls. The first two are priorities of classes: the last gets what
// the others leave of a batch.
enum class CallOrder {
  // The fewer calls still follow, the more urgent: the order that Rybko and Stolyar made unstable.
  kExitFirst,
  // The other way round.
  kEntryFirst,
  // First come, first served at the engine.
  kCallAge,
  // The agent that has been in the network longest.
  kParentAge,
  // The agent that is due first: the product's rule (router/core/agents/senior_step.h).
  kParentDue,
};
// "exit_first" and so on.
absl::string_view CallOrderName(CallOrder order);

// Which of several engines a call goes to when it joins them.
enum class Routing { kRandom, kFewestCalls, kFewestTokens };

struct NetworkOptions {
  CallOrder order = CallOrder::kParentDue;
  Routing routing = Routing::kFewestTokens;
  // Of worker/scheduler; one that is not work conserving with orders of one lane only (the last three).
  std::string scheduler = "sarathi";
  // Calls that an engine works on at any time; 0: any number.
  int64_t slots = 0;
  double horizon = 1000;
  // The tokens in the network are noted at multiples of this.
  double sample_every = 1;
  uint64_t seed = 1;
  // Asked now and then; false: the run ends there. May be empty.
  std::function<bool()> go_on;
  // Sees every batch of every engine, lane by lane, as it starts (engine.h). May be empty.
  std::function<void(const LaneBatch&)> watch;
};

struct NetworkRun {
  // At the i-th sample, at i * sample_every: tokens not yet computed of calls that wait at engines.
  std::vector<int64_t> tokens;
  // Agents in the network then.
  std::vector<int64_t> agents;
  int64_t peak_tokens = 0;
  // Agents that came, that ended and that were there at the end; tokens of the calls that joined an engine,
  // of computed batches, and what was left of the calls at the end, counted call by call.
  int64_t arrived = 0, ended = 0, agents_left = 0;
  int64_t tokens_joined = 0, tokens_computed = 0, tokens_left = 0;
  // Of agents that came in the second half and ended: from arrival to the end of the last call.
  struct Ended {
    // Of Network::types.
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

// INVALID_ARGUMENT for what CheckNetwork (network_check.h) refuses, and, from the batch where it happens, for
// a batch_time that is not positive and finite.
absl::StatusOr<NetworkRun> RunNetwork(const Network& network, const NetworkOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_NETWORK_RUN_H_
