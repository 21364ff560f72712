// bfio_nccl_check: tests the NCCL barrier with several ranks on one GPU, one process per rank.
//
// NCCL refuses two ranks on one GPU of one host. With its own NCCL_HOSTID each rank counts as another host,
// and all data goes over sockets. So the times are those of sockets, with processes taking turns on the GPU,
// and do not apply to NVLink. What is checked is that the barrier forms, that sums and maxima are right in
// every step, and that the death of a rank ends the others' wait.
//
// Usage: bfio_nccl_check [RANKS] [STEPS]     (defaults: 2, 200). Exit code 0, or 1 with a line per fault.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/barrier/factory.h"

namespace bfio::worker {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
// Timeout for a rank that has died without a message.
constexpr absl::Duration kLossPatience = absl::Seconds(20);

int Fault(int rank, const std::string& text) {
  std::printf("FAILED rank %d: %s\n", rank, text.c_str());
  return 1;
}

// Rank 0 writes a temporary file and renames it, so that no rank reads an incomplete one.
absl::StatusOr<std::string> ShareId(BarrierEndpoint& endpoint, int rank, const std::string& path) {
  if (rank == 0) {
    auto offer = endpoint.Offer();
    if (!offer.ok()) return offer.status();
    std::ofstream(path + ".new", std::ios::binary) << *offer;
    std::rename((path + ".new").c_str(), path.c_str());
    return offer;
  }
  for (int tries = 0; tries < 6000; ++tries) {
    std::ifstream file(path, std::ios::binary);
    if (file) {
      std::ostringstream text;
      text << file.rdbuf();
      return text.str();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return absl::DeadlineExceededError("rank 0 made no communicator id");
}

int RunRank(int rank, int ranks, int steps, const std::string& path) {
  auto endpoint = MakeBarrierEndpoint("nccl", {});
  if (!endpoint.ok()) return Fault(rank, endpoint.status().ToString());
  const auto id = ShareId(**endpoint, rank, path);
  if (!id.ok()) return Fault(rank, id.status().ToString());
  const GroupSpec group = {1, rank, ranks, *id};
  auto barrier = (*endpoint)->Form(group, kTimeout, {});
  if (!barrier.ok()) return Fault(rank, barrier.status().ToString());
  std::vector<double> us;
  for (int step = 1; step <= steps; ++step) {
    Contribution mine;
    mine.load_tokens = 1000 * step + rank;
    mine.local_ns = rank;
    mine.active = 1;
    const auto start = std::chrono::steady_clock::now();
    const auto view = (*barrier)->AllReduce(step, mine, kTimeout);
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    if (!view.ok()) return Fault(rank, view.status().ToString());
    const int64_t sum = int64_t{1000} * step * ranks + int64_t{ranks} * (ranks - 1) / 2;
    if (view->sum_load_tokens != sum || view->max_load_tokens != 1000 * step + ranks - 1 ||
        view->sum_active != ranks) {
      return Fault(rank, absl::StrCat("step ", step, ": sum ", view->sum_load_tokens, ", not ", sum));
    }
  }
  if (rank == 0) {
    std::sort(us.begin(), us.end());
    std::printf("%d ranks on one GPU, %d steps: all-reduce p50 %.0f us, p99 %.0f us\n", ranks, steps,
                us[us.size() / 2], us[us.size() * 99 / 100]);
    std::fflush(stdout);
  }
  if (ranks == 1) return 0;
  if (rank == ranks - 1) std::_Exit(0);
  const auto lost = (*barrier)->AllReduce(steps + 1, {}, kLossPatience);
  if (lost.ok()) return Fault(rank, "the step of a dead rank succeeded");
  return 0;
}

int RunAll(const char* program, int ranks, int steps) {
  const std::string path = absl::StrCat("/tmp/bfio_nccl_check.", getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      setenv("NCCL_HOSTID", absl::StrCat("rank", rank).c_str(), 1);
      for (const auto& [name, value] : {std::pair{"NCCL_NET", "Socket"},
                                        {"NCCL_IB_DISABLE", "1"},
                                        {"NCCL_SOCKET_IFNAME", "lo"},
                                        {"NCCL_SOCKET_FAMILY", "AF_INET"},
                                        {"NCCL_MNNVL_ENABLE", "0"},
                                        {"NCCL_NVLS_ENABLE", "0"},
                                        {"NCCL_MAX_CTAS", "1"},
                                        {"CUDA_MODULE_LOADING", "EAGER"}}) {
        setenv(name, value, 1);
      }
      const std::string r = absl::StrCat(rank), n = absl::StrCat(ranks), s = absl::StrCat(steps);
      execl(program, program, "rank", r.c_str(), n.c_str(), s.c_str(), path.c_str(), nullptr);
      _exit(1);
    }
    children.push_back(pid);
  }
  bool failed = false;
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    failed = failed || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  unlink(path.c_str());
  std::printf("%s\n", failed ? "FAILED" : "ok");
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace bfio::worker

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "rank") {
    return bfio::worker::RunRank(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), argv[5]);
  }
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2, steps = argc > 2 ? std::atoi(argv[2]) : 200;
  if (ranks < 1 || ranks > 8 || steps < 1) {
    std::fprintf(stderr, "bfio_nccl_check: 1 to 8 ranks, 1 step or more\n");
    return 2;
  }
  return bfio::worker::RunAll("/proc/self/exe", ranks, steps);
}
