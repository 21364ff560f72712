// bfio_chain_sim: one simulated run on chains of servers, as a JSON object.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/shutdown.h"
#include "common/config/program.h"
#include "common/workload/trace.h"
#include "research/chains/absl_flags.h"
#include "research/chains/drift.h"
#include "research/chains/runs.h"
#include "research/chains/slice_runs.h"

ABSL_FLAG(int64_t, servers, 20, "number of servers in the pool");
ABSL_FLAG(double, fast, 0.2,
          "share of fast servers (40 GB, 120 TFLOPS); the others have 20 GB and 80 TFLOPS");
ABSL_FLAG(int64_t, reserve, 7,
          "c: number of jobs for which every hosted block reserves cache; 0: tuned (only with serve)");
ABSL_FLAG(bool, use_all, false,
          "serve: place blocks on every server; false: stop placement once the chains carry the demand");
ABSL_FLAG(double, demand, 0.2, "jobs per second");
ABSL_FLAG(
    double, load, 0,
    "serve: demand as a share of the composed rate of all servers, instead of --demand; 0: use --demand");
ABSL_FLAG(int64_t, orders, 100, "placement: number of random orders of the servers");
ABSL_FLAG(std::string, system, "composed",
          "serve: composed, petals, petals_slices or bprr; slices: also whole, tuned or bursts");
ABSL_FLAG(std::string, rule, "jffc",
          "serve with --system=composed: dispatch rule jffc, sa_jsq, sed, jsq or jiq");
ABSL_FLAG(int64_t, jobs, 5000, "number of jobs per run");
ABSL_FLAG(uint64_t, seed, 1, "seed for server locations, jobs and orders");
ABSL_FLAG(
    std::string, rtt, "",
    "CSV file with a square matrix of round-trip times in ms; empty: 320 generated locations in Europe");
ABSL_FLAG(
    std::string, tuning, "retuned",
    "drift: low or high (keep the composition for that demand) or retuned (recompose when demand changes)");
ABSL_FLAG(double, low, 0.2, "drift: low demand, as a share of the largest composed rate");
ABSL_FLAG(double, high, 0.9, "drift: high demand, as a share of the largest composed rate");
ABSL_FLAG(double, hold, 3600, "drift: duration of the low and of the high demand, in seconds");
ABSL_FLAG(double, ramp, 3600,
          "drift: duration of the change from low to high demand and back, in seconds; 0: immediate");
ABSL_FLAG(int64_t, cycles, 2, "drift: number of cycles of low, rising, high and falling demand");
ABSL_FLAG(double, loading, 60, "drift: time in which servers load other blocks, in seconds");
ABSL_FLAG(double, compute, 1, "slices: factor for compute times");
ABSL_FLAG(double, communication, 1, "slices: factor for communication times between servers");
ABSL_FLAG(std::string, trace, "",
          "slices: trace file from which request lengths are drawn; empty: --profile");
ABSL_FLAG(std::string, profile, "code", "slices: built-in workload used without --trace");

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
    "  bfio_chain_sim drift --tuning=high        demand that rises and falls for hours\n"
    "  bfio_chain_sim slices --system=tuned      LLaMA-2-7B on nine slices of GPUs, in bursts";

// The number of nodes that the paper draws from.
constexpr int64_t kNodes = 320;
// Rows of a profile from which lengths are drawn.
constexpr int64_t kProfileRows = 100'000;

absl::Status Within(const char* flag, double value, double least, double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, ": must be within ", least, "..", most));
}

absl::Status CheckNumbers() {
  constexpr double kMost = 1e9;
  for (const absl::Status& status :
       {Within("servers", static_cast<double>(absl::GetFlag(FLAGS_servers)), 1, 1000),
        Within("fast", absl::GetFlag(FLAGS_fast), 0, 1),
        Within("reserve", static_cast<double>(absl::GetFlag(FLAGS_reserve)), 0, 1e6),
        Within("demand", absl::GetFlag(FLAGS_demand), 1e-9, kMost),
        Within("load", absl::GetFlag(FLAGS_load), 0, 0.999),
        Within("orders", static_cast<double>(absl::GetFlag(FLAGS_orders)), 0, 1e6),
        Within("low", absl::GetFlag(FLAGS_low), 1e-3, 1.5),
        Within("high", absl::GetFlag(FLAGS_high), 1e-3, 1.5),
        Within("hold", absl::GetFlag(FLAGS_hold), 1, 1e6), Within("ramp", absl::GetFlag(FLAGS_ramp), 0, 1e6),
        Within("cycles", static_cast<double>(absl::GetFlag(FLAGS_cycles)), 1, 1000),
        Within("loading", absl::GetFlag(FLAGS_loading), 0, 1e6),
        Within("jobs", static_cast<double>(absl::GetFlag(FLAGS_jobs)), 1, 1e8),
        Within("compute", absl::GetFlag(FLAGS_compute), 1e-6, 1e6),
        Within("communication", absl::GetFlag(FLAGS_communication), 0, 1e6)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<RttMatrix> Rtts() {
  const std::string path = absl::GetFlag(FLAGS_rtt);
  if (path.empty()) return EuropeanRtts(kNodes, 1);
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) return absl::NotFoundError(absl::StrCat("--rtt=", path, ": cannot be read"));
  absl::StatusOr<RttMatrix> rtts = ParseRtts(text);
  if (!rtts.ok())
    return absl::InvalidArgumentError(absl::StrCat("--rtt=", path, ": ", rtts.status().message()));
  return rtts;
}

absl::StatusOr<PoolRun> PoolFromFlags() {
  absl::StatusOr<RttMatrix> rtts = Rtts();
  if (!rtts.ok()) return rtts.status();
  PoolRun run = {.rtts = *std::move(rtts),
                 .servers = absl::GetFlag(FLAGS_servers),
                 .fast = absl::GetFlag(FLAGS_fast),
                 .reserve = absl::GetFlag(FLAGS_reserve),
                 .use_all = absl::GetFlag(FLAGS_use_all),
                 .demand = absl::GetFlag(FLAGS_demand),
                 .load = absl::GetFlag(FLAGS_load),
                 .jobs = absl::GetFlag(FLAGS_jobs),
                 .seed = absl::GetFlag(FLAGS_seed)};
  if (static_cast<int64_t>(run.rtts.size()) <= run.servers) {
    return absl::InvalidArgumentError(absl::StrCat("the matrix of round-trip times has ", run.rtts.size(),
                                                   " nodes; it needs more than --servers=", run.servers,
                                                   ", one for the orchestrator"));
  }
  if (run.load > 0 && run.reserve == 0)
    return absl::InvalidArgumentError("--load needs a --reserve above 0: c is tuned only for a --demand");
  return run;
}

absl::StatusOr<nlohmann::ordered_json> Slices() {
  const std::string path = absl::GetFlag(FLAGS_trace);
  const absl::StatusOr<Trace> trace =
      path.empty() ? SampleProfile(absl::GetFlag(FLAGS_profile), kProfileRows, 1) : ReadTrace(path);
  if (!trace.ok()) return trace.status();
  if (trace->requests.empty())
    return absl::InvalidArgumentError(absl::StrCat("--trace=", path, ": is empty"));
  return RunOnSlices({absl::GetFlag(FLAGS_compute), absl::GetFlag(FLAGS_communication),
                      absl::GetFlag(FLAGS_jobs), absl::GetFlag(FLAGS_seed)},
                     absl::GetFlag(FLAGS_system), *trace);
}

absl::StatusOr<nlohmann::ordered_json> Run(const std::string& study) {
  if (absl::Status status = CheckNumbers(); !status.ok()) return status;
  if (study == "slices") return Slices();
  const absl::StatusOr<PoolRun> pool = PoolFromFlags();
  if (!pool.ok()) return pool.status();
  if (study == "serve") return RunServe(*pool, absl::GetFlag(FLAGS_system), absl::GetFlag(FLAGS_rule));
  if (study == "tuning") return RunTuning(*pool);
  if (study == "drift") {
    return RunDrift({*pool, absl::GetFlag(FLAGS_low), absl::GetFlag(FLAGS_high), absl::GetFlag(FLAGS_hold),
                     absl::GetFlag(FLAGS_ramp), absl::GetFlag(FLAGS_cycles), absl::GetFlag(FLAGS_loading)},
                    absl::GetFlag(FLAGS_tuning));
  }
  if (pool->reserve == 0)
    return absl::InvalidArgumentError("--reserve=0 is only valid with serve, tuning and drift");
  if (study == "placement") return RunPlacement(*pool, absl::GetFlag(FLAGS_orders));
  if (study == "chains") return RunChains(*pool);
  return absl::InvalidArgumentError(absl::StrCat(
      "unexpected argument '", study, "'; must be placement, chains, serve, tuning, drift or slices"));
}

}  // namespace
}  // namespace bfio::sim

int main(int argc, char** argv) {
  const bfio::ProgramInfo info{"bfio_chain_sim", BFIO_VERSION, bfio::sim::kUsage};
  const auto arguments = bfio::InitProgram(argc, argv, info);
  if (arguments.size() != 1) {
    return bfio::ExitWith(
        info,
        absl::InvalidArgumentError(
            "one argument is required: placement, chains, serve, tuning, drift or slices (see --help)"));
  }
  const auto object = bfio::sim::Run(arguments[0]);
  if (!object.ok()) return bfio::ExitWith(info, object.status());
  std::cout << object->dump() << std::endl;
  return 0;
}
