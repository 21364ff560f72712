// bfio_barrier_bench: microseconds per all-reduce of the star and tree barriers, one process per rank, on
// loopback.
//
// For each group size and fan-out, in plain text and with TLS, it forks the ranks, which meet without pause;
// rank 0 times every all-reduce and prints the 50th and 99th percentile and the mean. On a machine with fewer
// cores than ranks this is mostly the time of context switches: the cost of running a group on that machine,
// not the cost of the network.
//
// Usage: bfio_barrier_bench [STEPS] [FAN_OUT...]     (defaults: 3000 steps; fan-outs 16, 8 and 4)
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "worker/barrier/star/socket.h"
#include "worker/barrier/star/star_endpoint.h"

namespace bfio::worker {
namespace {

constexpr int kWarmup = 200;
constexpr absl::Duration kTimeout = absl::Seconds(30);

// Meets `steps` times and returns the latencies in ns; empty after an error.
std::vector<int64_t> RunSteps(StarEndpoint& endpoint, const GroupSpec& group, int steps) {
  auto barrier = endpoint.Form(group, kTimeout, {});
  std::vector<int64_t> ns;
  for (int step = 1; barrier.ok() && step <= kWarmup + steps; ++step) {
    const int64_t start = MonotonicNs();
    const auto view = (*barrier)->AllReduce(step, {group.rank, step, 1}, kTimeout);
    if (!view.ok() || view->sum_active != group.world_size) {
      std::fprintf(stderr, "rank %d, step %d: %s\n", group.rank, step, view.status().ToString().c_str());
      return {};
    }
    if (step > kWarmup) ns.push_back(MonotonicNs() - start);
  }
  if (!barrier.ok()) std::fprintf(stderr, "rank %d: %s\n", group.rank, barrier.status().ToString().c_str());
  return ns;
}

[[noreturn]] void RunLeaf(GroupSpec group, const StarOptions& options, int steps) {
  auto endpoint = StarEndpoint::Create(options);
  _exit(endpoint.ok() && !RunSteps(**endpoint, group, steps).empty() ? 0 : 1);
}

bool RunGroup(int world_size, const StarOptions& options, int steps) {
  auto endpoint = StarEndpoint::Create(options);
  if (!endpoint.ok()) return false;
  GroupSpec group{1, 0, world_size, *(*endpoint)->Offer()};
  for (group.rank = 1; group.rank < world_size; ++group.rank) {
    if (fork() == 0) RunLeaf(group, options, steps);
  }
  group.rank = 0;
  std::vector<int64_t> ns = RunSteps(**endpoint, group, steps);
  bool good = !ns.empty();
  int status = 0;
  while (wait(&status) > 0) good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!good) return false;
  std::sort(ns.begin(), ns.end());
  double sum = 0;
  for (const int64_t one : ns) sum += static_cast<double>(one);
  const auto at = [&](double q) {
    return static_cast<double>(ns[static_cast<size_t>(q * (ns.size() - 1))]) / 1e3;
  };
  std::printf("%6d %8d %5s %10.1f %10.1f %10.1f\n", world_size, options.fan_out, options.tls ? "yes" : "no",
              at(0.5), at(0.99), sum / ns.size() / 1e3);
  std::fflush(stdout);
  return true;
}

}  // namespace
}  // namespace bfio::worker

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 3000;
  std::vector<int> fan_outs;
  for (int i = 2; i < argc; ++i) fan_outs.push_back(std::atoi(argv[i]));
  if (fan_outs.empty()) fan_outs = {16, 8, 4};
  if (steps < 1 || *std::min_element(fan_outs.begin(), fan_outs.end()) < 1) {
    std::fprintf(stderr, "usage: bfio_barrier_bench [STEPS] [FAN_OUT...]\n");
    return 2;
  }
#ifndef NDEBUG
  std::fprintf(stderr,
               "warning: assertions are enabled, so the times are too high; use the release preset\n");
#endif
  std::printf("%ld cores, %d steps\n%6s %8s %5s %10s %10s %10s\n", sysconf(_SC_NPROCESSORS_ONLN), steps,
              "ranks", "fan-out", "TLS", "p50 us", "p99 us", "mean us");
  for (const int world_size : {2, 4, 8, 16, 32, 64}) {
    for (const int fan_out : fan_outs) {
      for (const bool tls : {false, true}) {
        if (!bfio::worker::RunGroup(world_size, {.fan_out = fan_out, .tls = tls}, steps)) return 1;
      }
      // All fan-outs of at least world_size - 1 give the same star.
      if (fan_out + 1 >= world_size && fan_out == fan_outs.front()) break;
    }
  }
  return 0;
}
