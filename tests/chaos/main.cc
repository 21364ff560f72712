// bfio_chaos: tests a group of real processes under faults and attacks.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "tests/chaos/runs.h"

ABSL_FLAG(double, minutes, 2, "duration of a run, in minutes");
ABSL_FLAG(uint64_t, seed, 1, "seed of faults and requests");
ABSL_FLAG(double, rate, 200, "requests per second");
ABSL_FLAG(double, fault_gap, 3.5, "mean time between faults, in seconds");
ABSL_FLAG(int32_t, workers, 8, "number of worker processes");
ABSL_FLAG(std::string, engine, "sim", "engine of the workers: sim or cpu");
ABSL_FLAG(std::string, model, "tests/golden/qwen3", "--engine=cpu: directory of the checkpoint");
ABSL_FLAG(bool, pools, false, "--engine=cpu: a third of the workers compute prompts for the others");
ABSL_FLAG(absl::Duration, step_timeout, absl::Seconds(1), "the router's --step_timeout");
ABSL_FLAG(std::vector<std::string>, faults, {},
          "kinds of faults to inject, separated by commas, as the schedule prints them; empty: all");
ABSL_FLAG(int32_t, peers, 3, "greedy: number of greedy peers");
ABSL_FLAG(std::string, memory_csv, "", "CSV file for memory samples, one per second");

namespace {

constexpr char kUsage[] =
    R"(bfio_chaos runs a router, workers and clients, injects faults and checks every request.

  bfio_chaos --minutes=30 --seed=7     random faults from a seed, then an audit of every request and token
  bfio_chaos greedy --minutes=1        what peers that take all they can do to the others
)";

// Exit code 2 for unknown names.
int RunFaults() {
  bfio::chaos::RunOptions options;
  options.duration = absl::Minutes(absl::GetFlag(FLAGS_minutes));
  options.seed = absl::GetFlag(FLAGS_seed);
  options.rate = absl::GetFlag(FLAGS_rate);
  options.mean_gap = absl::Seconds(absl::GetFlag(FLAGS_fault_gap));
  options.workers = absl::GetFlag(FLAGS_workers);
  options.engine = absl::GetFlag(FLAGS_engine);
  options.model = absl::GetFlag(FLAGS_model);
  options.pools = absl::GetFlag(FLAGS_pools);
  options.step_timeout = absl::GetFlag(FLAGS_step_timeout);
  options.memory_csv = absl::GetFlag(FLAGS_memory_csv);
  for (const std::string& name : absl::GetFlag(FLAGS_faults)) {
    bool known = false;
    for (const bfio::chaos::FaultKind kind : bfio::chaos::AllFaults()) {
      if (bfio::chaos::NameOf(kind) != name) continue;
      options.kinds.push_back(kind);
      known = true;
    }
    if (known) continue;
    std::fprintf(stderr, "unknown fault '%s'\n", name.c_str());
    return 2;
  }
  return bfio::chaos::RunChaos(options);
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(kUsage);
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  const std::string command = words.size() > 1 ? words[1] : "";
  if (command.empty()) return RunFaults();
  if (command == "greedy") {
    bfio::chaos::GreedyOptions options;
    options.seed = absl::GetFlag(FLAGS_seed);
    options.peers = absl::GetFlag(FLAGS_peers);
    options.duration = absl::Minutes(absl::GetFlag(FLAGS_minutes));
    return bfio::chaos::MeasureGreedyPeers(options);
  }
  std::fprintf(stderr, "unknown command '%s'; choose greedy\n", command.c_str());
  return 2;
}
