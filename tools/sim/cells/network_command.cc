#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "common/base/shutdown.h"
#include "nlohmann/json.hpp"
#include "tools/sim/cells/cell.h"
#include "tools/sim/cells/cells.h"
#include "tools/sim/network/examples.h"
#include "tools/sim/network/growth.h"
#include "tools/sim/network/network_run.h"

ABSL_DECLARE_FLAG(uint64_t, seed);
ABSL_DECLARE_FLAG(double, load);
ABSL_DECLARE_FLAG(double, seconds);
ABSL_DECLARE_FLAG(uint32_t, samples);
ABSL_FLAG(
    std::string, network, "rybko_stolyar",
    "network: rybko_stolyar, fork_join, cycles, long_and_short, parallel (--engines of them) or two_types; "
    "--load is that of the busiest engine");
ABSL_FLAG(uint32_t, engines, 1, "network, with parallel: engines");
ABSL_FLAG(std::string, order, "parent_due",
          "network: whose call goes first: exit_first, entry_first, call_age, parent_age or parent_due");
ABSL_FLAG(std::string, routing, "fewest_tokens",
          "network: which of several engines: random, fewest_calls or fewest_tokens");
ABSL_FLAG(std::string, scheduler, "sarathi", "network, engine: the batch scheduler, as bfio_worker's");
ABSL_FLAG(uint32_t, slots, 0,
          "network, engine: requests that an engine works on at a time; 0: any number. serve: slots of a "
          "rank, 256 unless given");

namespace bfio::sim {
namespace {

constexpr double kLeastSamples = 20;

absl::StatusOr<Network> NetworkFromFlags() {
  const absl::StatusOr<size_t> which =
      ChoiceOf("network", absl::GetFlag(FLAGS_network),
               {"rybko_stolyar", "fork_join", "cycles", "long_and_short", "parallel", "two_types"});
  if (!which.ok()) return which.status();
  const double load = absl::GetFlag(FLAGS_load);
  if (const absl::Status status = CheckNumber("load", load, 1e-6, 1e3); !status.ok()) return status;
  if (*which == 4) {
    const absl::Status status = CheckNumber("engines", absl::GetFlag(FLAGS_engines), 1, 10'000);
    if (!status.ok()) return status;
    return ParallelEngines(static_cast<int32_t>(absl::GetFlag(FLAGS_engines)), load);
  }
  Network (*const kNetworks[])(double) = {RybkoStolyar, ForkJoin, Cycles, LongAndShort, nullptr, TwoTypes};
  return kNetworks[*which](load);
}

nlohmann::ordered_json LatencyCell(std::vector<double> latencies) {
  if (latencies.empty()) return {{"latency_mean", nullptr}, {"latency_p99", nullptr}};
  const double sum = std::accumulate(latencies.begin(), latencies.end(), 0.0);
  return {{"latency_mean", sum / static_cast<double>(latencies.size())},
          {"latency_p99", SampleQuantile(std::move(latencies), 0.99)}};
}

nlohmann::ordered_json NetworkCell(const Network& network, const NetworkOptions& options,
                                   const NetworkRun& run) {
  std::vector<double> all;
  std::vector<std::vector<double>> by_type(network.types.size());
  for (const NetworkRun::Ended& agent : run.finished) {
    all.push_back(agent.latency);
    by_type[static_cast<size_t>(agent.type)].push_back(agent.latency);
  }
  nlohmann::ordered_json cell = {{"engine_tokens_per_time", static_cast<double>(network.token_budget) /
                                                                network.BatchTime(network.token_budget)},
                                 {"engines", network.engines},
                                 {"growth_slope", SecondHalfSlope(run.tokens, options.sample_every)},
                                 {"peak_growth", PeakGrowth(run.tokens, options.sample_every)},
                                 {"peak_tokens", run.peak_tokens},
                                 {"agents_at_half_time", run.agents[run.agents.size() / 2]}};
  cell.update(LatencyCell(std::move(all)));
  nlohmann::ordered_json& types = cell["types"] = nlohmann::ordered_json::array();
  for (size_t t = 0; t < by_type.size(); ++t) {
    types.push_back({{"type", network.types[t].name}});
    types.back().update(LatencyCell(std::move(by_type[t])));
  }
  const size_t samples = absl::GetFlag(FLAGS_samples);
  if (samples == 0) return cell;
  for (const char* key : {"sample_time", "sample_tokens"}) cell[key] = nlohmann::ordered_json::array();
  const size_t stride = std::max<size_t>(1, run.tokens.size() / samples);
  for (size_t i = 0; i < run.tokens.size(); i += stride) {
    cell["sample_time"].push_back(static_cast<double>(i) * options.sample_every);
    cell["sample_tokens"].push_back(run.tokens[i]);
  }
  return cell;
}

absl::StatusOr<NetworkOptions> NetworkOptionsFromFlags() {
  constexpr CallOrder kOrders[] = {CallOrder::kExitFirst, CallOrder::kEntryFirst, CallOrder::kCallAge,
                                   CallOrder::kParentAge, CallOrder::kParentDue};
  std::vector<absl::string_view> names;
  for (const CallOrder order : kOrders) names.push_back(CallOrderName(order));
  const absl::StatusOr<size_t> order = ChoiceOf("order", absl::GetFlag(FLAGS_order), names);
  if (!order.ok()) return order.status();
  const absl::StatusOr<size_t> routing =
      ChoiceOf("routing", absl::GetFlag(FLAGS_routing), {"random", "fewest_calls", "fewest_tokens"});
  if (!routing.ok()) return routing.status();
  NetworkOptions options;
  options.order = kOrders[*order];
  options.routing = static_cast<Routing>(*routing);
  options.scheduler = absl::GetFlag(FLAGS_scheduler);
  options.slots = absl::GetFlag(FLAGS_slots);
  options.horizon = absl::GetFlag(FLAGS_seconds);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.go_on = [] { return !ShutdownSignal::Requested(); };
  // Growth is estimated from the samples, one per unit of time.
  if (const absl::Status status = CheckNumber("seconds", options.horizon, kLeastSamples, 1e7); !status.ok()) {
    return status;
  }
  return options;
}

}  // namespace

absl::Status RunNetworkCommand() {
  const absl::StatusOr<Network> network = NetworkFromFlags();
  if (!network.ok()) return network.status();
  const absl::StatusOr<NetworkOptions> options = NetworkOptionsFromFlags();
  if (!options.ok()) return options.status();
  const absl::StatusOr<NetworkRun> run = RunNetwork(*network, *options);
  if (!run.ok()) return run.status();
  if (ShutdownSignal::Requested()) return absl::CancelledError("stopped by a signal");
  PrintCell(NetworkCell(*network, *options, *run));
  return absl::OkStatus();
}

}  // namespace bfio::sim
