#include "worker/link/worker_process.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "worker/energy/nvml_meter.h"
#include "worker/link/rank.h"
#include "worker/metrics/worker_metrics.h"

namespace bfio::worker {
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

absl::Status WithFlag(const char* flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("--", flag, ": ", status.message()));
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
    auto opened = OpenWorkerWeb(options.http_listen, options.version, std::move(readers));
    if (!opened.ok()) return WithFlag("http_listen", opened.status());
    process->web_ = *std::move(opened);
    spdlog::info("metrics and probes on http://{}", process->web_->address());
  }
  if (!options.step_log.empty()) {
    auto opened = StepLog::Open(options.step_log, kStepLogBytes);
    if (!opened.ok()) return WithFlag("step_log", opened.status());
    process->log_ = *std::move(opened);
  }
  return process;
}

absl::StatusOr<RankParts> WorkerProcess::MakeRank(std::string id, int index, std::unique_ptr<Engine> engine,
                                                  RankModel model) {
  BFIO_ASSIGN_OR_RETURN(
      auto endpoint, MakeBarrierEndpoint(options_.barrier, {.host = options_.barrier_host,
                                                            .hub = hub_,
                                                            .device = options_.engine.cuda.device + index}));
  recorder(index).OnLimits(engine->limits());
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
  for (const auto& recorder : recorders_) recorder->OnStarted();
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

}  // namespace bfio::worker
