#include "worker/link/worker.h"

#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/address.h"
#include "common/base/annotated.h"
#include "common/base/mutex.h"
#include "common/base/saturate.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/http/http_server.h"
#include "common/net/channel.h"
#include "common/net/exposure.h"
#include "common/telemetry/log.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/factory.h"
#include "worker/energy/energy_monitor.h"
#include "worker/energy/nvml_meter.h"
#include "worker/engine/cpu/part_memory.h"
#include "worker/engine/cuda/device_weights.h"
#include "worker/engine/decode/kv_fit.h"
#include "worker/kv/page_table.h"
#include "worker/link/rank.h"
#include "worker/link/rank_recorder.h"
#include "worker/link/step_log.h"
#include "worker/link/step_loop.h"
#include "worker/metrics/worker_metrics.h"

namespace bfio::worker {

// The shared parts of a worker process: engines, log of steps, metrics port. Creates ranks. Threads: one, and
// the HTTP server's; outlives the ranks.

// A worker's HTTP port. It takes no commands and shows no request's content, so it is unauthenticated plain
// text; bind it to the monitoring network.
//   /metrics   docs/reference/metrics.md
//   /healthz   200 while every rank's step loop works or waits, from before the model is loaded; the body is
//              the ranks' state. 503 when a loop is stuck (RankRecorder::Health): a restart is the remedy.
//   /readyz    200 when, in addition, every rank is in an epoch and none leaves; the same body.
// Serves at `listen`, HOST:PORT. Threads: one calls it; the server's read the recorders. The recorders are
// borrowed. INVALID_ARGUMENT for a malformed address, UNAVAILABLE when it cannot be bound.
absl::StatusOr<std::unique_ptr<HttpServer>> OpenWorkerWeb(const std::string& listen, std::string version,
                                                          std::vector<const RankRecorder*> ranks);

// The parts of a rank's step loop.
struct RankParts {
  StepLoopOptions loop;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<BarrierEndpoint> endpoint;
  // Outlives the loop; null where none is metered.
  std::unique_ptr<EnergyMonitor> energy;
};

// How a rank's engine differs from those of the process's other ranks.
struct RankModel {
  // Digest of what it computes.
  std::string digest;
  // Expected time of a mean request in seconds; 0: not known.
  double service_s = 0;
};

class WorkerProcess {
 public:
  // Answers probes from now on. INVALID_ARGUMENT or UNAVAILABLE, naming the flag. `options` outlives it.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Open(const WorkerOptions& options);

  // All ranks of the process, which share a model's weights.
  absl::StatusOr<std::vector<RankParts>> MakeRanks();
  // A rank with its own engine, recorded as rank `index` of the process.
  absl::StatusOr<RankParts> MakeRank(std::string id, int index, std::unique_ptr<Engine> engine,
                                     RankModel model);
  RankRecorder& recorder(int index) { return *recorders_[static_cast<size_t>(index)]; }

 private:
  explicit WorkerProcess(const WorkerOptions& options) : options_(options) {}

  const WorkerOptions& options_;
  std::vector<std::unique_ptr<RankRecorder>> recorders_;
  std::unique_ptr<HttpServer> web_;
  // Null: steps are not logged.
  std::unique_ptr<StepLog> log_;
};

// Counts the ranks that are still running. Threads: any.
class RunningRanks {
 public:
  explicit RunningRanks(int running) : running_(running) {}

  void OnEnd(const absl::Status& status) {
    MutexLock lock(&mutex_);
    --running_;
    if (status_.ok()) status_ = status;
  }
  bool AllEndedWithin(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    const auto none = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&none), timeout);
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

namespace {

// Null where nothing is metered, or cannot be: the worker runs without measurements.
std::unique_ptr<EnergyMonitor> MeterEnergy(const WorkerOptions& options, int index) {
  if (options.energy_devices.empty()) return nullptr;
  const std::string& device = options.energy_devices[index % options.energy_devices.size()];
  auto meter = MakeNvmlMeter(device);
  if (!meter.ok()) {
    spdlog::warn("--energy_device={}: {}; its energy is not measured", device,
                 std::string(meter.status().message()));
    return nullptr;
  }
  return std::make_unique<EnergyMonitor>(*std::move(meter));
}

std::string IdOfRank(const WorkerOptions& options, int index) {
  if (options.ranks_per_process == 1) return options.worker_id;
  return absl::StrCat(options.worker_id, "#", index);
}

std::vector<RankTelemetry> FiguresOf(const std::vector<const RankRecorder*>& ranks) {
  std::vector<RankTelemetry> telemetry;
  for (const RankRecorder* rank : ranks) telemetry.push_back(rank->telemetry());
  return telemetry;
}

// What a rank in this phase waits for; empty if it may be computing.
absl::string_view WaitsFor(RankPhase phase) {
  switch (phase) {
    case RankPhase::kStarting: return " (loading the model)";
    case RankPhase::kConnecting: return " (waiting for a router)";
    case RankPhase::kJoined: return " (waiting for a group)";
    case RankPhase::kServing:
    case RankPhase::kLeaving: break;
  }
  return "";
}

HttpReply PhasesOf(const std::vector<const RankRecorder*>& ranks, bool must_serve) {
  std::map<RankPhase, int> phases;
  HttpReply reply;
  const absl::Time now = MonotonicNow();
  for (const RankRecorder* rank : ranks) {
    if (const absl::Status health = rank->Health(now); !health.ok()) {
      reply.status = 503;
      reply.body = absl::StrCat(health.message(), "\n");
      return reply;
    }
    ++phases[rank->telemetry().phase];
  }
  reply.body = absl::StrJoin(phases, ", ", [](std::string* out, const auto& phase) {
    absl::StrAppend(out, phase.second, " ", NameOf(phase.first), WaitsFor(phase.first));
  });
  reply.body += "\n";
  const bool all_serve = phases.size() == 1 && phases.begin()->first == RankPhase::kServing;
  if (must_serve && !all_serve) reply.status = 503;
  return reply;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Open(const WorkerOptions& options) {
  std::unique_ptr<WorkerProcess> process(new WorkerProcess(options));
  std::vector<const RankRecorder*> readers;
  for (int i = 0; i < options.ranks_per_process; ++i) {
    process->recorders_.push_back(
        std::make_unique<RankRecorder>(IdOfRank(options, i), options.engine.limits));
    readers.push_back(process->recorders_.back().get());
  }
  if (!options.http_listen.empty()) {
    BFIO_ASSIGN_OR_RETURN(
        process->web_,
        Annotated("--http_listen", OpenWorkerWeb(options.http_listen, options.version, std::move(readers))));
    spdlog::info("metrics and probes on http://{}", process->web_->address());
  }
  if (!options.step_log.empty()) {
    BFIO_ASSIGN_OR_RETURN(process->log_,
                          Annotated("--step_log", StepLog::Open(options.step_log, kStepLogBytes)));
  }
  return process;
}

absl::StatusOr<RankParts> WorkerProcess::MakeRank(std::string id, int index, std::unique_ptr<Engine> engine,
                                                  RankModel model) {
  BFIO_ASSIGN_OR_RETURN(
      auto endpoint, MakeBarrierEndpoint(options_.barrier, {.host = options_.barrier_host,
                                                            .device = options_.engine.cuda.device + index}));
  // With several heads of chains, those of the one that began last.
  recorder(index).Record([tokens = engine->limits().kv_tokens](RankTelemetry& of) {
    of.kv_tokens = of.free_kv_tokens = tokens;
  });
  RankParts parts;
  parts.energy = MeterEnergy(options_, index);
  StepLoopOptions& loop = parts.loop;
  loop.worker_id = id;
  loop.version = options_.version;
  loop.step_log = log_ == nullptr ? nullptr : log_->AddRank(id);
  loop.energy = parts.energy.get();
  loop.resume_buffer_bytes = options_.resume_buffer_bytes;
  loop.kv_watermark = options_.kv_watermark;
  loop.recorder = &recorder(index);
  loop.service_s = model.service_s;
  loop.group = options_.group;
  loop.instance = NewInstance();
  loop.model = std::move(model.digest);
  parts.engine = std::move(engine);
  parts.endpoint = std::move(endpoint);
  return parts;
}

absl::StatusOr<std::vector<RankParts>> WorkerProcess::MakeRanks() {
  BFIO_ASSIGN_OR_RETURN(const auto engines, Engines::Create(options_.engine, options_.ranks_per_process));
  const std::string model = engines.digest().Hex();
  std::vector<RankParts> ranks;
  for (int i = 0; i < options_.ranks_per_process; ++i) {
    BFIO_ASSIGN_OR_RETURN(auto engine, engines.Make(i));
    BFIO_ASSIGN_OR_RETURN(auto rank, MakeRank(IdOfRank(options_, i), i, std::move(engine), {model}));
    ranks.push_back(std::move(rank));
  }
  // Bad input has been reported by now, in a separate line.
  spdlog::info("model {}", model);
  for (const auto& recorder : recorders_) recorder->Record([](RankTelemetry& of) { of.started = true; });
  return ranks;
}

absl::StatusOr<std::unique_ptr<HttpServer>> OpenWorkerWeb(const std::string& listen, std::string version,
                                                          std::vector<const RankRecorder*> ranks) {
  HttpServer::Options options;
  options.listen = listen;
  // Scrapers and probes may use any host name.
  options.authenticate = [](const HttpCaller& caller) { return caller.address; };
  auto server = HttpServer::Bind(std::move(options));
  if (!server.ok()) return server;
  (*server)->Get("/healthz", [ranks](const HttpRequest&) { return PhasesOf(ranks, false); });
  (*server)->Get("/readyz", [ranks](const HttpRequest&) { return PhasesOf(ranks, true); });
  (*server)->Get("/metrics", [ranks, version = std::move(version)](const HttpRequest&) {
    return HttpReply{200, "text/plain; version=0.0.4; charset=utf-8",
                     MetricsText(version, DroppedLogLines(), FiguresOf(ranks))};
  });
  (*server)->Start();
  return server;
}

namespace {

constexpr absl::Duration kSignalPoll = absl::Milliseconds(100);

std::unique_ptr<Rank> AttachRank(const WorkerOptions& options, RankParts parts,
                                 const std::shared_ptr<grpc::Channel>& channel) {
  RouterLinkOptions link;
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
  process.recorder(0).Record([](RankTelemetry& of) { of.started = true; });
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
  if (options.insecure || options.tls.enabled() || IsLoopback(router)) return absl::OkStatus();
  const bool star = options.barrier == "star" || options.barrier == "star_tls";
  if (star && IsLoopback(Address{options.barrier_host, 0})) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(star ? "--barrier_host=" + options.barrier_host : "--barrier=nccl",
                   ": other machines can reach the barrier, and the link to the router, which carries the "
                   "barrier's secret, is not encrypted: give --worker_tls, or --insecure"));
}

}  // namespace

absl::Status CheckWorkerOptions(const WorkerOptions& options) {
  BFIO_ASSIGN_OR_RETURN(const Target router,
                        Annotated("--router", ParseTarget(options.router, options.tls.enabled())));
  BFIO_RETURN_IF_ERROR(CheckBarrierSecret(options, router));
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
  for (RankParts& rank : parts) ranks.push_back(AttachRank(options, std::move(rank), channel));
  for (auto& rank : ranks) rank->Start([&running](const absl::Status& status) { running.OnEnd(status); });
  WaitForEnd(options, running, ranks);
  for (auto& rank : ranks) rank->End("stopped");
  ranks.clear();
  return running.status();
}

namespace {

constexpr double kBytesPerMiB = 1 << 20;

void LogWindow(const std::string& directory, const ModelConfig& config) {
  if (config.sliding_window == 0) return;
  spdlog::info("{}: prompt + output of a request is limited to {} tokens, the model's sliding window",
               directory, config.sliding_window);
}

void LogModel(const std::string& directory, const cpu::Weights& weights) {
  const ModelConfig& config = weights.config();
  spdlog::info("{}: {}, {} layers, hidden size {}, vocabulary {}, {:.1f} MiB of weights per step, {} kernels",
               directory, std::string(FamilyName(config.family)), config.layers, config.hidden, config.vocab,
               static_cast<double>(weights.step_bytes()) / kBytesPerMiB, cpu::BestKernels().name);
  LogWindow(directory, config);
}

// KV tokens of each of `ranks` ranks, so that the whole model and all caches fit: the given number, or
// without --kv_tokens as many as fit. RESOURCE_EXHAUSTED.
absl::StatusOr<int64_t> FitKv(const EngineOptions& options, const Model& model, int32_t ranks) {
  DecodeOptions wanted = options.cpu.decode;
  wanted.limits = options.limits;
  const int64_t asked = options.limits.kv_tokens;
  const ModelPart whole = WholeModel(model.config().layers);
  const ModelBytes bytes = cpu::BytesOf(model, options.weights);
  const auto caches = [&](int64_t tokens) {
    PageTableOptions pages = PageTableOptionsOf(wanted);
    pages.capacity_tokens = tokens;
    return SaturatedProduct(
        {cpu::PartShape(model.config(), whole.blocks.count, pages.page_tokens, PageTable::PageLimit(pages))
             .bytes(),
         ranks});
  };
  const int64_t all = caches(asked);
  const bool limited = options.memory_limit_bytes != 0;
  const int64_t memory = limited ? options.memory_limit_bytes : cpu::MachineMemory();
  // The machine also runs other programs: without a limit, an eighth of its memory is left for them.
  const int64_t spare = options.fit_kv && !limited ? memory / 8 : 0;
  const int64_t weights = bytes.Weights(whole);
  if (const auto fits = FitKvTokens(wanted, options.fit_kv, memory - spare - weights, caches)) {
    if (*fits < asked) {
      spdlog::warn("KV capacity is --kv_tokens={}, the most that fits into {:.1f} MiB of memory", *fits,
                   static_cast<double>(memory - spare) / kBytesPerMiB);
    }
    return *fits;
  }
  if (limited) {
    return Annotated("--memory_limit_mb", CheckFits(bytes, whole, all, options.memory_limit_bytes));
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "--kv_tokens=%d: the KV cache of %s needs up to %.1f MiB in addition to %.1f MiB of weights, and this "
      "machine has %.1f MiB: at most %d tokens per rank fit",
      asked, ranks == 1 ? "one rank" : absl::StrCat(ranks, " ranks"), all / kBytesPerMiB,
      weights / kBytesPerMiB, memory / kBytesPerMiB, MostKvTokens(asked, memory - weights, caches)));
}

}  // namespace

ModelDigest DigestOf(const EngineOptions& options, const Model& model) {
  if (options.name == "cuda") return gpu::CudaDigestOf(model.digest());
  return DigestOf(options.weights, model);
}

absl::Status CheckEngineOptions(const EngineOptions& options) {
  if (options.name == "sim" && !options.model.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model=", options.model,
                     ": --engine=sim, the default, does not load a checkpoint: give --engine=cpu or cuda"));
  }
  if (options.name == "sim") return absl::OkStatus();
  if (options.name != "cpu" && options.name != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--engine: unknown engine '", options.name, "'; must be sim, cpu or cuda"));
  }
  if (options.model.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--engine=", options.name, " requires --model=DIR, the directory of a checkpoint"));
  }
  if (options.name == "cuda") {
    CudaOptions cuda = options.cuda;
    cuda.decode.limits = options.limits;
    return CheckDecodeOptions(cuda.decode);
  }
  CpuOptions cpu = options.cpu;
  cpu.decode.limits = options.limits;
  return CheckCpuOptions(cpu);
}

absl::StatusOr<Engines> Engines::Create(const EngineOptions& options, int32_t ranks) {
  BFIO_RETURN_IF_ERROR(CheckEngineOptions(options));
  Engines engines(options);
  engines.options_.sim.limits = engines.options_.cpu.decode.limits = options.limits;
  engines.options_.cuda.decode.limits = options.limits;
  engines.options_.cuda.fit_kv = options.fit_kv;
  if (options.name == "sim") {
    engines.digest_ = ModelDigest::Of(SimModelName(engines.options_.sim));
    return engines;
  }
  if (options.name == "cuda") {
    // Checked before the model is loaded, which takes minutes. Each rank has its own GPU.
    for (const int32_t device : {options.cuda.device, options.cuda.device + ranks - 1}) {
      BFIO_RETURN_IF_ERROR(Annotated("--engine=cuda", CheckCudaDevice(device)));
    }
    BFIO_ASSIGN_OR_RETURN(engines.model_, Annotated("--model", LoadModel(options.model)));
    LogWindow(options.model, engines.model_->config());
    engines.digest_ = DigestOf(options, *engines.model_);
    return engines;
  }
  BFIO_ASSIGN_OR_RETURN(auto model, Annotated("--model", LoadModel(options.model)));
  BFIO_ASSIGN_OR_RETURN(engines.options_.cpu.decode.limits.kv_tokens, FitKv(options, *model, ranks));
  engines.digest_ = DigestOf(options, *model);
  engines.weights_ = cpu::Weights::Make(std::move(model), options.weights);
  LogModel(options.model, *engines.weights_);
  return engines;
}

absl::StatusOr<std::unique_ptr<Engine>> Engines::Make(int32_t rank) const {
  if (weights_ != nullptr) return MakeCpuEngine(options_.cpu, weights_);
  if (model_ != nullptr) {
    CudaOptions cuda = options_.cuda;
    cuda.device += rank;
    return MakeCudaEngine(cuda, *model_, [](const std::string& text) { spdlog::info("{}", text); });
  }
  return MakeSimEngine(options_.sim);
}

}  // namespace bfio::worker
