// What the experiments on networks of engines share (stability, rybko-stolyar, fork-join, engines).
//
// Purpose: cases run over seeds and threads, their figures, and verdicts on growth. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_NETWORK_STUDY_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_NETWORK_STUDY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/sim/experiment/experiment.h"
#include "tools/sim/network/growth.h"
#include "tools/sim/network/network_run.h"

namespace bfio::sim {

struct NetworkCase {
  std::string name;
  Network network;
  // The seed is set for each run.
  NetworkOptions options;
};

// A case, over its seeds.
struct NetworkFigures {
  // By seed: growth over the second half and growth of the peaks (growth.h), tokens per unit of time; the
  // largest number of tokens there were.
  std::vector<double> slopes, peak_growths, peaks;
  // Agents in the network at the middle of the run, and their mean latency and its 99th percentile over those
  // that came in the second half; NaN where none has ended.
  std::vector<double> agents, latency, latency_p99;
  // The same two by type of agent, then by seed.
  std::vector<std::vector<double>> type_latency, type_p99;
  // Of seed 1: tokens by sample.
  std::vector<int64_t> tokens;
};

// At least this many seeds: with fewer, a verdict's rate of false alarms would be no figure to state.
inline constexpr int64_t kLeastVerdictSeeds = 7;
// The context's, at least those.
int64_t VerdictSeeds(const ExperimentContext& context);

// Every case with seeds 1 .. VerdictSeeds.
absl::StatusOr<std::vector<NetworkFigures>> RunNetworks(const ExperimentContext& context,
                                                        const std::vector<NetworkCase>& cases);

// "bounded (2^-7)", say, by the growth of the peaks; the threshold as in growth.h.
std::string VerdictText(const NetworkFigures& figures, double threshold);

// A line of the tokens of seed 1 over time, of at most a few hundred points.
report::Series TokensLine(const std::string& name, const NetworkFigures& figures, double sample_every);

// What the pages say of how verdicts come about.
std::string VerdictNote(const ExperimentContext& context, const std::string& threshold);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_NETWORK_STUDY_H_
