#include "worker/link/worker_web.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/telemetry/log.h"
#include "worker/metrics/worker_metrics.h"

namespace bfio::worker {
namespace {

std::vector<RankTelemetry> FiguresOf(const std::vector<const RankRecorder*>& ranks) {
  std::vector<RankTelemetry> telemetry;
  for (const RankRecorder* rank : ranks) telemetry.push_back(rank->telemetry());
  return telemetry;
}

// What a rank in this phase waits for; empty if it may be computing.
absl::string_view WaitsFor(RankPhase phase) {
  switch (phase) {
    case RankPhase::kStarting:
      return " (loading the model)";
    case RankPhase::kConnecting:
      return " (waiting for a router)";
    case RankPhase::kJoined:
      return " (waiting for a group)";
    case RankPhase::kServing:
    case RankPhase::kLeaving:
      break;
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
