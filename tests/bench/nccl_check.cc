// bfio_nccl_check: tests the NCCL barrier with several ranks on one GPU, one process per rank.
//
// NCCL refuses two ranks on one GPU of one host. With its own NCCL_HOSTID each rank counts as another host,
// and all data goes over sockets. So the times are those of sockets, with processes taking turns on the GPU,
// and do not apply to NVLink. What is checked is that the barrier forms, that sums and maxima are right in
// every step, that collectives between device memory are, and that the death of a rank ends the others' wait:
// with two ranks in the all-reduce, with more of them in a collective that is queued in a stream, which then
// drains.
//
// With a checkpoint's folder the ranks then decode with it, sharing the MLP computation (--mlp=tp): their
// tokens must be those of an engine that runs alone, except where two logits are close.
//
// Usage: bfio_nccl_check [RANKS] [STEPS] [FOLDER]     (defaults: 2, 200, none). Exit code 0, or 1 with a line
// per fault.
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
#include "common/base/rng.h"
#include "tests/testing/cuda/device_array.h"
#include "tests/testing/group_member.h"
#include "worker/barrier/factory.h"
#include "worker/barrier/step_peers.h"
#include "worker/engine/cuda/device/cuda_engine.h"

namespace bfio::worker {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
// Timeout for a rank that has died without a message.
constexpr absl::Duration kLossPatience = absl::Seconds(20);
// The step number after which the ranks decode; larger than any step number of the checks before.
constexpr int64_t kDecodeFrom = 1'000'000;

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

// Collectives between device memory, as in an engine's step. All numbers are small integers.
class DeviceCheck {
 public:
  DeviceCheck(const GroupSpec& group, Barrier& barrier) : group_(group), barrier_(barrier) {
    testing::CudaMust(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }

  // Empty, or an error message.
  std::string Run() {
    StepPeers peers(group_, barrier_, 1, 1, kTimeout);
    if (absl::Status status = Queue(peers); !status.ok()) return status.ToString();
    if (absl::Status status = Wait(peers); !status.ok()) return status.ToString();
    const auto all = all_.Content();
    const auto sum = sum_.Content();
    for (int i = 0; i < kCount; ++i) {
      for (int from = 0; from < group_.world_size; ++from) {
        if (all[from * kCount + i] != Bf16Of(from)) return "the all-gather's rows are wrong";
      }
      const int ranks = group_.world_size;
      if (sum[i] != static_cast<float>(ranks * group_.rank * 100 + ranks * (ranks - 1) / 2)) {
        return "the reduce-scatter's sum is wrong";
      }
    }
    return "";
  }

  // With a peer that has died. Empty, or an error message.
  std::string RunLost() {
    StepPeers peers(group_, barrier_, 2, 1, kLossPatience);
    absl::Status status = Queue(peers);
    if (status.ok()) status = Wait(peers);
    if (status.ok()) return "a collective with a dead rank succeeded";
    // The stream must remain usable, because an engine continues to use it.
    testing::CudaMust(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return "";
  }

 private:
  static constexpr int kCount = 4096;

  static uint16_t Bf16Of(int value) {
    return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, static_cast<float>(value)) >> 16);
  }
  std::vector<float> Terms() const {
    std::vector<float> terms;
    for (int to = 0; to < group_.world_size; ++to) {
      terms.insert(terms.end(), kCount, static_cast<float>(to * 100 + group_.rank));
    }
    return terms;
  }
  absl::Status Queue(StepPeers& peers) {
    absl::Status status = peers.QueueAllGather(mine_.data(), all_.data(), kCount, stream_);
    if (status.ok()) status = peers.QueueReduceScatter(terms_.data(), sum_.data(), kCount, stream_);
    return status;
  }
  absl::Status Wait(StepPeers& peers) {
    for (;;) {
      const cudaError_t state = cudaStreamQuery(stream_);
      if (state != cudaErrorNotReady) testing::CudaMust(state, "cudaStreamQuery");
      if (absl::Status status = peers.CheckDevice(); !status.ok() || state == cudaSuccess) return status;
    }
  }

  const GroupSpec group_;
  Barrier& barrier_;
  cudaStream_t stream_ = nullptr;
  const testing::DeviceArray<uint16_t> mine_{std::vector<uint16_t>(kCount, Bf16Of(group_.rank))};
  const testing::DeviceArray<uint16_t> all_{static_cast<size_t>(group_.world_size) * kCount};
  const testing::DeviceArray<float> terms_{Terms()};
  const testing::DeviceArray<float> sum_{size_t{kCount}};
};

// Empty, or an error message.
std::string DecodeTogether(const GroupSpec& group, Barrier& barrier, const std::string& folder) {
  const auto model = LoadModel(folder);
  if (!model.ok()) return model.status().ToString();
  CudaOptions options;
  options.decode.limits = {6, 600, 1000};
  options.decode.page_tokens = 16;
  options.decode.step_tokens = 48;
  const auto alone = MakeCudaEngine(options, **model, [](const std::string&) {});
  if (!alone.ok()) return alone.status().ToString();
  options.decode.share_mlp = true;
  const auto engine = MakeCudaEngine(options, **model, [](const std::string&) {});
  if (!engine.ok()) return engine.status().ToString();
  Rng rng(static_cast<uint64_t>(group.rank));
  std::vector<SequenceRequest> requests;
  for (Handle handle = 1; handle <= 5; ++handle) {
    SequenceRequest& request = requests.emplace_back();
    request.handle = handle;
    request.prompt_length = 5 + static_cast<int64_t>(rng.Below(50));
    request.max_new_tokens = 20;
    request.ignore_eos = true;
    if (absl::Status status = (*engine)->Admit(request); !status.ok()) return status.ToString();
  }
  auto together = testing::GroupMember(group, barrier, kDecodeFrom).Run(**engine);
  if (!together.ok()) return together.status().ToString();
  StepOutput out;
  size_t equal = 0;
  for (const SequenceRequest& request : requests) {
    if (absl::Status status = (*alone)->Admit(request); !status.ok()) return status.ToString();
    std::vector<uint32_t> tokens;
    while ((*alone)->active() > 0) {
      if (absl::Status status = (*alone)->Step(out); !status.ok()) return status.ToString();
      for (const auto& token : out.tokens) tokens.push_back(token.id);
    }
    equal += (*together)[request.handle] == tokens;
    if ((*together)[request.handle].size() != tokens.size())
      return "a request has the wrong number of tokens";
  }
  std::printf("rank %d: %zu of %zu requests as alone\n", group.rank, equal, requests.size());
  std::fflush(stdout);
  return equal + 1 >= requests.size() ? "" : "tokens differ from those of a run without other requests";
}

int RunRank(int rank, int ranks, int steps, const std::string& path, const std::string& folder) {
  auto endpoint = MakeBarrierEndpoint("nccl", {});
  if (!endpoint.ok()) return Fault(rank, endpoint.status().ToString());
  const auto id = ShareId(**endpoint, rank, path);
  if (!id.ok()) return Fault(rank, id.status().ToString());
  const GroupSpec group = {1, rank, ranks, *id};
  auto barrier = (*endpoint)->Form(group, kTimeout, {});
  if (!barrier.ok()) return Fault(rank, barrier.status().ToString());
  DeviceCheck device(group, **barrier);
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
  if (const std::string wrong = device.Run(); !wrong.empty()) return Fault(rank, wrong);
  if (!folder.empty()) {
    if (const std::string wrong = DecodeTogether(group, **barrier, folder); !wrong.empty()) {
      return Fault(rank, wrong);
    }
  }
  if (ranks == 1) return 0;
  if (rank == ranks - 1) std::_Exit(0);
  if (ranks > 2) {
    const std::string wrong = device.RunLost();
    return wrong.empty() ? 0 : Fault(rank, wrong);
  }
  const auto lost = (*barrier)->AllReduce(2 * kDecodeFrom, {}, kLossPatience);
  if (lost.ok()) return Fault(rank, "the step of a dead rank succeeded");
  return 0;
}

int RunAll(const char* program, int ranks, int steps, const char* folder) {
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
      execl(program, program, "rank", r.c_str(), n.c_str(), s.c_str(), path.c_str(), folder, nullptr);
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
  if (argc == 7 && std::string(argv[1]) == "rank") {
    return bfio::worker::RunRank(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), argv[5],
                                 argv[6]);
  }
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2, steps = argc > 2 ? std::atoi(argv[2]) : 200;
  if (ranks < 1 || ranks > 8 || steps < 1) {
    std::fprintf(stderr, "bfio_nccl_check: 1 to 8 ranks, 1 step or more\n");
    return 2;
  }
  return bfio::worker::RunAll("/proc/self/exe", ranks, steps, argc > 3 ? argv[3] : "");
}
