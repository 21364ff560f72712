#include "worker/link/worker.h"

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/mutex.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/net/channel.h"
#include "common/net/exposure.h"
#include "worker/barrier/factory.h"
#include "worker/energy/nvml_meter.h"
#include "worker/link/rank.h"
#include "worker/link/worker_web.h"

namespace bfio::worker {
namespace {

constexpr absl::Duration kSignalPoll = absl::Milliseconds(100);

// Counts the ranks that are still running.
class Roll {
 public:
  explicit Roll(int running) : running_(running) {}

  void CheckOut(const absl::Status& status) {
    MutexLock lock(&mutex_);
    --running_;
    if (status_.ok()) status_ = status;
  }
  bool AllOutWithin(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    const auto out = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&out), timeout);
  }
  // The first error.
  absl::Status status() {
    MutexLock lock(&mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Null where nothing is metered, or cannot be: a worker without figures is better than none.
std::unique_ptr<EnergyMonitor> MeterEnergy(const WorkerOptions& options, int index) {
  if (options.energy_devices.empty()) return nullptr;
  const std::string& device = options.energy_devices[index % options.energy_devices.size()];
  auto meter = MakeNvmlMeter(device);
  if (!meter.ok()) {
    spdlog::warn("--energy_device={}: {}; its energy is not metered", device,
                 std::string(meter.status().message()));
    return nullptr;
  }
  return std::make_unique<EnergyMonitor>(*std::move(meter));
}

std::string IdOfRank(const WorkerOptions& options, int index) {
  if (options.ranks_per_process == 1) return options.worker_id;
  return absl::StrCat(options.worker_id, "#", index);
}

// What a rank shares with the process's others, and its place among them.
struct RankPlace {
  std::string id;
  int index = 0;
  RankRecorder* recorder = nullptr;
  std::shared_ptr<LocalHub> hub;
  std::shared_ptr<grpc::Channel> channel;
  // May be null.
  StepLog* log = nullptr;
  // Of what the rank's engine computes.
  std::string model;
  // Of a mean request, where it is known.
  double service_s = 0;
};

absl::StatusOr<std::unique_ptr<Rank>> MakeRank(const WorkerOptions& options, std::unique_ptr<Engine> engine,
                                               const RankPlace& place) {
  auto endpoint = MakeBarrierEndpoint(
      options.barrier,
      {.host = options.barrier_host, .hub = place.hub, .device = options.engine.cuda.device + place.index});
  if (!endpoint.ok()) return endpoint.status();
  const std::string& id = place.id;
  RankRecorder* const recorder = place.recorder;
  RouterLinkOptions link;
  link.router = options.router;
  link.worker_id = id;
  link.connect_timeout = options.connect_timeout;
  link.seed = std::hash<std::string>()(id);
  link.recorder = recorder;
  StepLoopOptions loop = {id, options.version, place.log == nullptr ? nullptr : place.log->AddRank(id)};
  std::unique_ptr<EnergyMonitor> energy = MeterEnergy(options, place.index);
  loop.energy = energy.get();
  loop.resume_buffer_bytes = options.resume_buffer_bytes;
  loop.admission = options.admission;
  loop.recorder = recorder;
  loop.service_s = place.service_s;
  loop.group = options.group;
  loop.instance = NewInstance();
  loop.model = place.model;
  return std::make_unique<Rank>(std::move(loop), std::move(link), std::move(engine), *std::move(endpoint),
                                place.channel, std::move(energy));
}

std::vector<const RankRecorder*> Readers(const std::vector<std::unique_ptr<RankRecorder>>& recorders) {
  std::vector<const RankRecorder*> readers;
  for (const auto& recorder : recorders) readers.push_back(recorder.get());
  return readers;
}

// The ranks share the process's recorder: its counters add up, its gauges and limits are those of the rank
// that told last.
absl::Status RunParts(const WorkerOptions& options, const RankPlace& place) {
  place.recorder->OnStarted();
  return options.parts->Run(options, place.channel, [&options, place](PartRank part) {
    RankPlace own = place;
    own.model = std::move(part.model);
    own.id = absl::StrCat(options.worker_id, "#", part.suffix);
    own.service_s = part.service_s;
    own.recorder->OnLimits(part.engine->limits());
    return MakeRank(options, std::move(part.engine), own);
  });
}

// Waits for the ranks' own end, or for a signal and then for the drain.
void WaitForEnd(const WorkerOptions& options, Roll& roll, std::vector<std::unique_ptr<Rank>>& ranks) {
  while (!ShutdownSignal::Requested()) {
    if (roll.AllOutWithin(kSignalPoll) || !roll.status().ok()) return;
  }
  spdlog::info("leaving: waiting up to {} for the router to drain this worker",
               absl::FormatDuration(options.drain_timeout));
  for (auto& rank : ranks) rank->Leave("signal");
  if (!roll.AllOutWithin(options.drain_timeout))
    spdlog::warn("not drained in time: requests will be replayed");
}

// The router's link brings what admits a rank to the barrier: the star's secret, or NCCL's unique id.
absl::Status CheckBarrierSecret(const WorkerOptions& options, const Target& router) {
  if (options.insecure || options.tls.enabled() || IsLoopback(router) || options.barrier == "local")
    return absl::OkStatus();
  const bool star = options.barrier == "star" || options.barrier == "star_tls";
  if (star && IsLoopback(Address{options.barrier_host, 0})) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(star ? "--barrier_host=" + options.barrier_host : "--barrier=nccl",
                   ": other machines can reach the barrier, and the link to the router, which brings the "
                   "secret that admits ranks, is not encrypted: give --worker_tls, or --insecure"));
}

}  // namespace

absl::Status CheckWorkerOptions(const WorkerOptions& options) {
  const auto router = ParseTarget(options.router, options.tls.enabled());
  if (!router.ok()) return absl::InvalidArgumentError(absl::StrCat("--router: ", router.status().message()));
  if (absl::Status status = CheckBarrierSecret(options, *router); !status.ok()) return status;
  if (absl::Status status = CheckTlsFiles(options.tls, "worker_tls", TlsEnd::kClient); !status.ok())
    return status;
  if (absl::Status status = CheckEngineOptions(options.engine); !status.ok()) return status;
  const bool limited =
      options.engine.name == "cpu" || (options.engine.name == "cuda" && options.parts != nullptr);
  if (options.engine.memory_limit_bytes != 0 && !limited) {
    return absl::InvalidArgumentError(
        "--memory_limit_mb is for --engine=cpu, and for --engine=cuda with --pipeline_listen");
  }
  if (options.worker_id.empty() || options.worker_id.size() > 200) {
    return absl::InvalidArgumentError("--worker_id must have 1 to 200 characters");
  }
  // A rank that takes or frees memory may wait for all GPUs of its process, on which kernels wait for this
  // rank.
  if (options.barrier == "nccl" && options.ranks_per_process > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--barrier=nccl needs a process for each GPU: --ranks_per_process=1 and its own --device, "
        "not ",
        options.ranks_per_process, " ranks"));
  }
  return options.parts == nullptr ? absl::OkStatus() : options.parts->Check(options);
}

absl::Status RunWorker(const WorkerOptions& options) {
  if (absl::Status status = CheckWorkerOptions(options); !status.ok()) return status;
  // Outlive the ranks, which update them, and answer probes while a model is loaded.
  std::vector<std::unique_ptr<RankRecorder>> recorders;
  for (int i = 0; i < options.ranks_per_process; ++i) {
    recorders.push_back(std::make_unique<RankRecorder>(IdOfRank(options, i), options.engine.limits));
  }
  std::unique_ptr<HttpServer> web;
  if (!options.http_listen.empty()) {
    auto opened = OpenWorkerWeb(options.http_listen, options.version, Readers(recorders));
    if (!opened.ok()) {
      return absl::Status(opened.status().code(), absl::StrCat("--http_listen: ", opened.status().message()));
    }
    web = *std::move(opened);
    spdlog::info("metrics and probes on http://{}", web->address());
  }
  // Outlives the ranks: a reactor must never hold the last reference.
  const std::shared_ptr<grpc::Channel> channel =
      NewChannel(ParseTarget(options.router)->ToString(), 0, ChannelCredentials(options.tls));
  const auto hub = std::make_shared<LocalHub>();
  // Outlives the ranks, which append to it.
  std::unique_ptr<StepLog> log;
  if (!options.step_log.empty()) {
    auto opened = StepLog::Open(options.step_log, options.step_log_bytes);
    if (!opened.ok()) {
      return absl::Status(opened.status().code(), absl::StrCat("--step_log: ", opened.status().message()));
    }
    log = *std::move(opened);
  }
  if (options.parts != nullptr) {
    return RunParts(options, {options.worker_id, 0, recorders[0].get(), hub, channel, log.get()});
  }
  const auto engines = Engines::Create(options.engine, options.ranks_per_process);
  if (!engines.ok()) return engines.status();
  const std::string model = engines->digest().Hex();
  Roll roll(options.ranks_per_process);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int i = 0; i < options.ranks_per_process; ++i) {
    auto engine = engines->Make(i);
    if (!engine.ok()) return engine.status();
    recorders[i]->OnLimits((*engine)->limits());
    auto rank = MakeRank(options, *std::move(engine),
                         {IdOfRank(options, i), i, recorders[i].get(), hub, channel, log.get(), model});
    if (!rank.ok()) return rank.status();
    ranks.push_back(*std::move(rank));
  }
  // Bad input has been reported by now, in a separate line.
  spdlog::info("model {}", model);
  for (const auto& recorder : recorders) recorder->OnStarted();
  for (auto& rank : ranks) rank->Start([&roll](const absl::Status& status) { roll.CheckOut(status); });
  WaitForEnd(options, roll, ranks);
  for (auto& rank : ranks) rank->End("stopped");
  ranks.clear();
  return roll.status();
}

}  // namespace bfio::worker
