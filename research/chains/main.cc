// bfio_chain_sim: one simulated run on chains of servers, as a JSON object.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/config/options.h"
#include "common/config/program.h"
#include "common/workload/trace.h"
#include "research/chains/runs.h"
#include "research/chains/slice_runs.h"

namespace bfio::sim {
namespace {

constexpr char kUsage[] =
    "bfio_chain_sim runs one simulation of a model distributed over servers and prints a JSON object.\n"
    "research/chains.py combines many runs into the results of docs/design/chains.md.\n\n"
    "  bfio_chain_sim placement --demand=0.3     cache reservations of GBP-CR and of random server orders\n"
    "  bfio_chain_sim chains                     the composed chains and the input of cache allocation\n"
    "  bfio_chain_sim serve --load=0.9 --rule=sed\n"
    "  bfio_chain_sim serve --servers=10 --system=petals\n"
    "  bfio_chain_sim tuning --demand=0.4        every c, with bounds and the simulated response\n"
    "  bfio_chain_sim slices --system=tuned      LLaMA-2-7B on nine slices of GPUs, in bursts";

// The number of nodes that the paper draws from.
constexpr int64_t kNodes = 320;
// Rows of a profile from which lengths are drawn.
constexpr int64_t kProfileRows = 100'000;

struct Settings {
  // Also the jobs and the seed of slices.
  PoolRun pool;
  SliceRun slices;
  int64_t orders = 100;
  std::string system = "composed", rule = "jffc";
  std::string rtt, trace, profile = "code";
};

void AddOptions(OptionTable& table, Settings& s) {
  table.Add("servers", &s.pool.servers, Within(1, 1000), "number of servers in the pool");
  table.Add("fast", &s.pool.fast, Within(0, 1),
            "share of fast servers (40 GB, 120 TFLOPS); the others have 20 GB and 80 TFLOPS");
  table.Add("reserve", &s.pool.reserve, Within(0, 1e6),
            "c: number of jobs for which every hosted block reserves cache; 0: tuned (only with serve)");
  table.Add("use_all", &s.pool.use_all,
            "serve: place blocks on every server; false: stop placement once the chains carry the demand");
  table.Add("demand", &s.pool.demand, Within(1e-9, 1e9), "jobs per second");
  table.Add("load", &s.pool.load, Within(0, 0.999),
            "serve: demand as a share of the composed rate of all servers, instead of --demand; 0: use "
            "--demand");
  table.Add("orders", &s.orders, Within(0, 1e6), "placement: number of random orders of the servers");
  table.Add("system", &s.system,
            "serve: composed, petals, petals_slices or bprr; slices: also whole, tuned or bursts");
  table.Add("rule", &s.rule, "serve with --system=composed: dispatch rule jffc, sa_jsq, sed, jsq or jiq");
  table.Add("jobs", &s.pool.jobs, Within(1, 1e8), "number of jobs per run");
  table.Add("seed", &s.pool.seed, "seed for server locations, jobs and orders");
  table.Add(
      "rtt", &s.rtt,
      "CSV file with a square matrix of round-trip times in ms; empty: 320 generated locations in Europe");
  const Within factor(1e-6, 1e6), factor_or_none(0, 1e6);
  table.Add("compute", &s.slices.compute, factor, "slices: factor for compute times");
  table.Add("communication", &s.slices.communication, factor_or_none,
            "slices: factor for communication times between servers");
  table.Add("trace", &s.trace, "slices: trace file from which request lengths are drawn; empty: --profile");
  table.Add("profile", &s.profile, "slices: built-in workload used without --trace");
}

absl::StatusOr<RttMatrix> Rtts(const std::string& path) {
  if (path.empty()) return EuropeanRtts(kNodes, 1);
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) return absl::NotFoundError(absl::StrCat("--rtt=", path, ": cannot be read"));
  absl::StatusOr<RttMatrix> rtts = ParseRtts(text);
  if (!rtts.ok())
    return absl::InvalidArgumentError(absl::StrCat("--rtt=", path, ": ", rtts.status().message()));
  return rtts;
}

absl::StatusOr<PoolRun> PoolOf(const Settings& settings) {
  PoolRun run = settings.pool;
  BFIO_ASSIGN_OR_RETURN(run.rtts, Rtts(settings.rtt));
  if (static_cast<int64_t>(run.rtts.size()) <= run.servers) {
    return absl::InvalidArgumentError(absl::StrCat("the matrix of round-trip times has ", run.rtts.size(),
                                                   " nodes; it needs more than --servers=", run.servers,
                                                   ", one for the orchestrator"));
  }
  if (run.load > 0 && run.reserve == 0)
    return absl::InvalidArgumentError("--load needs a --reserve above 0: c is tuned only for a --demand");
  return run;
}

absl::StatusOr<nlohmann::ordered_json> Slices(const Settings& s) {
  BFIO_ASSIGN_OR_RETURN(const Trace trace,
                        s.trace.empty() ? SampleProfile(s.profile, kProfileRows, 1) : ReadTrace(s.trace));
  if (trace.requests.empty())
    return absl::InvalidArgumentError(absl::StrCat("--trace=", s.trace, ": is empty"));
  return RunOnSlices({s.slices.compute, s.slices.communication, s.pool.jobs, s.pool.seed}, s.system, trace);
}

absl::StatusOr<nlohmann::ordered_json> Run(const std::string& study, Settings& s) {
  if (study == "slices") return Slices(s);
  BFIO_ASSIGN_OR_RETURN(const PoolRun pool, PoolOf(s));
  if (study == "serve") return RunServe(pool, s.system, s.rule);
  if (study == "tuning") return RunTuning(pool);
  if (pool.reserve == 0) return absl::InvalidArgumentError("--reserve=0 is only valid with serve and tuning");
  if (study == "placement") return RunPlacement(pool, s.orders);
  if (study == "chains") return RunChains(pool);
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected argument '", study, "'; must be placement, chains, serve, tuning or slices"));
}

}  // namespace
}  // namespace bfio::sim

int main(int argc, char** argv) {
  const bfio::ProgramInfo info{"bfio_chain_sim", bfio::Version(), bfio::sim::kUsage};
  bfio::sim::Settings settings;
  bfio::OptionTable table;
  bfio::sim::AddOptions(table, settings);
  const auto arguments = bfio::InitProgram(argc, argv, info, table);
  if (arguments.size() != 1) {
    return bfio::ExitWith(
        info, absl::InvalidArgumentError(
                  "one argument is required: placement, chains, serve, tuning or slices (see --help)"));
  }
  const auto object = bfio::sim::Run(arguments[0], settings);
  if (!object.ok()) return bfio::ExitWith(info, object.status());
  std::cout << object->dump() << std::endl;
  return 0;
}
