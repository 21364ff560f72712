#include "worker/link/worker_web.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/telemetry/log.h"
#include "worker/metrics/worker_metrics.h"

namespace bfio::worker {
namespace {

std::vector<RankFigures> FiguresOf(const std::vector<const RankRecorder*>& ranks) {
  std::vector<RankFigures> figures;
  for (const RankRecorder* rank : ranks) figures.push_back(rank->figures());
  return figures;
}

HttpReply PhasesOf(const std::vector<const RankRecorder*>& ranks, bool must_serve) {
  std::map<RankPhase, int> phases;
  for (const RankRecorder* rank : ranks) ++phases[rank->figures().phase];
  HttpReply reply;
  reply.body = absl::StrJoin(phases, ", ", [](std::string* out, const auto& phase) {
    absl::StrAppend(out, phase.second, " ", NameOf(phase.first));
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
  // Scrapers and probes may call it by whatever name.
  options.gate = [](const HttpCaller& caller) { return caller.address; };
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
