#include "worker/link/worker.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/net/channel.h"
#include "common/net/exposure.h"
#include "worker/link/rank.h"
#include "worker/link/worker_process.h"

namespace bfio::worker {
namespace {

constexpr absl::Duration kSignalPoll = absl::Milliseconds(100);

std::unique_ptr<Rank> AttachRank(const WorkerOptions& options, RankParts parts,
                                 const std::shared_ptr<grpc::Channel>& channel, std::string tokenizer = "") {
  RouterLinkOptions link;
  link.tokenizer = std::move(tokenizer);
  link.router = options.router;
  link.worker_id = parts.loop.worker_id;
  link.connect_timeout = options.connect_timeout;
  link.seed = std::hash<std::string>()(link.worker_id);
  link.recorder = parts.loop.recorder;
  return std::make_unique<Rank>(std::move(parts.loop), std::move(link), std::move(parts.engine),
                                std::move(parts.endpoint), channel, std::move(parts.energy));
}

// The ranks share the process's recorder: its counters add up, its gauges and limits are those of the rank
// that reported last.
absl::Status RunParts(const WorkerOptions& options, WorkerProcess& process,
                      const std::shared_ptr<grpc::Channel>& channel) {
  process.recorder(0).OnStarted();
  return options.parts->Run(
      options, channel,
      [&options, &process, channel](PartRank part) -> absl::StatusOr<std::unique_ptr<Rank>> {
        BFIO_ASSIGN_OR_RETURN(
            auto parts, process.MakeRank(absl::StrCat(options.worker_id, "#", part.suffix), 0,
                                         std::move(part.engine), {std::move(part.model), part.service_s}));
        return AttachRank(options, std::move(parts), channel);
      });
}

// Waits for the ranks' own end, or for a signal and then for the drain.
void WaitForEnd(const WorkerOptions& options, RunningRanks& running,
                std::vector<std::unique_ptr<Rank>>& ranks) {
  while (!ShutdownSignal::Requested()) {
    if (running.AllEndedWithin(kSignalPoll) || !running.status().ok()) return;
  }
  spdlog::info("leaving: waiting up to {} for the router to drain this worker",
               absl::FormatDuration(options.drain_timeout));
  for (auto& rank : ranks) rank->Leave("signal");
  if (!running.AllEndedWithin(options.drain_timeout))
    spdlog::warn("not drained within --drain_timeout; the router replays the remaining requests");
}

// The link to the router carries the secret that admits a rank to the barrier, or NCCL's unique id.
absl::Status CheckBarrierSecret(const WorkerOptions& options, const Target& router) {
  if (options.insecure || options.tls.enabled() || IsLoopback(router) || options.barrier == "local")
    return absl::OkStatus();
  const bool star = options.barrier == "star" || options.barrier == "star_tls";
  if (star && IsLoopback(Address{options.barrier_host, 0})) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(star ? "--barrier_host=" + options.barrier_host : "--barrier=nccl",
                   ": other machines can reach the barrier, and the link to the router, which carries the "
                   "barrier's secret, is not encrypted: give --worker_tls, or --insecure"));
}

}  // namespace

absl::Status CheckWorkerOptions(const WorkerOptions& options) {
  const auto router = ParseTarget(options.router, options.tls.enabled());
  if (!router.ok()) return absl::InvalidArgumentError(absl::StrCat("--router: ", router.status().message()));
  BFIO_RETURN_IF_ERROR(CheckBarrierSecret(options, *router));
  BFIO_RETURN_IF_ERROR(CheckTlsFiles(options.tls, "worker_tls", TlsEnd::kClient));
  BFIO_RETURN_IF_ERROR(CheckEngineOptions(options.engine));
  const bool limited =
      options.engine.name == "cpu" || (options.engine.name == "cuda" && options.parts != nullptr);
  if (options.engine.memory_limit_bytes != 0 && !limited) {
    return absl::InvalidArgumentError(
        "--memory_limit_mb requires --engine=cpu, or --engine=cuda on a server of chains");
  }
  if (options.worker_id.empty() || options.worker_id.size() > 200) {
    return absl::InvalidArgumentError("--worker_id must have 1 to 200 characters");
  }
  // Deadlock: a rank that allocates or frees memory may wait for all GPUs of its process, on which kernels
  // wait for this rank.
  if (options.barrier == "nccl" && options.ranks_per_process > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--barrier=nccl needs one process per GPU, each with --ranks_per_process=1 and its own "
                     "CUDA_VISIBLE_DEVICES, not ",
                     options.ranks_per_process, " ranks in a process"));
  }
  return options.parts == nullptr ? absl::OkStatus() : options.parts->Check(options);
}

absl::Status RunWorker(const WorkerOptions& options) {
  BFIO_RETURN_IF_ERROR(CheckWorkerOptions(options));
  BFIO_ASSIGN_OR_RETURN(auto process, WorkerProcess::Open(options));
  // Outlives the ranks: a reactor must never hold the last reference.
  const std::shared_ptr<grpc::Channel> channel =
      NewChannel(ParseTarget(options.router)->ToString(), 0, ChannelCredentials(options.tls));
  if (options.parts != nullptr) return RunParts(options, *process, channel);
  BFIO_ASSIGN_OR_RETURN(auto parts, process->MakeRanks());
  RunningRanks running(options.ranks_per_process);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (RankParts& rank : parts) {
    // The first rank sends the tokenizer for all.
    ranks.push_back(AttachRank(options, std::move(rank), channel, ranks.empty() ? options.engine.model : ""));
  }
  for (auto& rank : ranks) rank->Start([&running](const absl::Status& status) { running.OnEnd(status); });
  WaitForEnd(options, running, ranks);
  for (auto& rank : ranks) rank->End("stopped");
  ranks.clear();
  return running.status();
}

}  // namespace bfio::worker
