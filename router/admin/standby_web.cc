#include "router/admin/standby_web.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "router/admin/state_metrics.h"

namespace bfio::router {

void Standby::MarkAlive(absl::Time now) {
  MutexLock lock(&mutex_);
  looked_ = now;
}

void Standby::SetLeader(std::string leader) {
  MutexLock lock(&mutex_);
  leader_ = std::move(leader);
}

absl::StatusOr<std::string> Standby::Describe(absl::Time now) const {
  MutexLock lock(&mutex_);
  if (now - looked_ > kStandbyStuckAfter) {
    return absl::UnavailableError(
        absl::StrCat("the election key has not been read for ",
                     absl::FormatDuration(absl::Trunc(now - looked_, absl::Seconds(1)))));
  }
  if (leader_.empty()) return std::string("standing by: no leader is known yet");
  return absl::StrCat("standing by for the router at ", leader_);
}

absl::StatusOr<std::unique_ptr<HttpServer>> OpenStandbyWeb(const std::string& listen, const TlsFiles& tls,
                                                           std::shared_ptr<const Standby> standby) {
  HttpServer::Options options;
  options.listen = listen;
  options.tls_cert = tls.cert;
  options.tls_key = tls.key;
  options.tls_ca = tls.ca;
  // No authentication: the content is public.
  options.authenticate = [](const auto&...) {
    return absl::PermissionDeniedError("not available on a standby router");
  };
  auto server = HttpServer::Bind(std::move(options));
  if (!server.ok()) return server;
  constexpr auto kEverybody = HttpServer::Access::kEverybody;
  const auto probe = [standby](int alive) {
    return [standby, alive](const HttpRequest&) {
      const absl::StatusOr<std::string> text = standby->Describe(MonotonicNow());
      HttpReply reply;
      reply.status = text.ok() ? alive : 503;
      reply.body = absl::StrCat(text.ok() ? *text : text.status().message(), "\n");
      return reply;
    };
  };
  (*server)->Get("/healthz", probe(200), kEverybody);
  (*server)->Get("/readyz", probe(503), kEverybody);
  (*server)->Get(
      "/metrics",
      [standby](const HttpRequest&) {
        return HttpReply{200, "text/plain; version=0.0.4; charset=utf-8",
                         StandbyMetricsText(standby->version(), absl::ToDoubleSeconds(standby->Uptime()))};
      },
      kEverybody);
  (*server)->Start();
  return server;
}

}  // namespace bfio::router
