#include "router/admin/web.h"

#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/admin/live/live_page.h"
#include "router/admin/state_metrics.h"
#include "router/core/policy/policy.h"

namespace bfio::router {
namespace {

// Calls `ask` with a callback for the decision thread, and waits for the result.
template <typename Answer>
Answer Await(absl::FunctionRef<absl::Status(absl::AnyInvocable<void(Answer) &&>)> ask) {
  // Shared with the decision thread, because this thread may have timed out when the answer comes.
  struct Box {
    Mutex mutex;
    bool done ABSL_GUARDED_BY(mutex) = false;
    std::optional<Answer> answer ABSL_GUARDED_BY(mutex);
  };
  const auto box = std::make_shared<Box>();
  const absl::Status asked = ask([box](Answer answer) {
    MutexLock lock(&box->mutex);
    box->answer = std::move(answer);
    box->done = true;
  });
  if (!asked.ok()) return asked;
  MutexLock lock(&box->mutex);
  if (!box->mutex.AwaitWithTimeout(absl::Condition(&box->done), kWebPatience)) {
    return absl::DeadlineExceededError("the decision thread did not answer in time");
  }
  return *std::move(box->answer);
}

absl::StatusOr<v1::ClusterState> ReadState(OperatorHandler* handler, const StateExtras& extras) {
  using State = absl::StatusOr<RouterState>;
  const State state = Await<State>([&](auto done) { return handler->State(std::move(done)); });
  if (!state.ok()) return state.status();
  v1::ClusterState message = ToProto(*state);
  if (extras) extras(message);
  return message;
}

absl::Status AskPolicy(OperatorHandler* handler, const v1::PolicySetting& setting, const std::string& who) {
  BFIO_ASSIGN_OR_RETURN(PolicyChange change, ToPolicyChange(setting));
  return Await<absl::Status>([&](auto done) {
    return handler->SetPolicy(std::move(change), Logged(who, "set policy", setting.name(), std::move(done)));
  });
}

// Calls DrainWorker or UndrainWorker.
absl::Status ChangeWorker(OperatorHandler* handler,
                          absl::Status (OperatorHandler::*act)(std::string, OperatorHandler::Done),
                          const char* name, const std::string& worker_id, const std::string& who) {
  return Await<absl::Status>(
      [&](auto done) { return (handler->*act)(worker_id, Logged(who, name, worker_id, std::move(done))); });
}

absl::Status CheckAlive(const OperatorHandler& handler) {
  const absl::Duration since = handler.SinceLastIteration();
  if (since < kStuckAfter) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the decision thread has been stuck for ",
                                             absl::FormatDuration(absl::Trunc(since, absl::Seconds(1)))));
}

absl::Status CheckReady(const OperatorHandler& handler) {
  if (handler.Stopping()) return absl::UnavailableError("the router is shutting down");
  return CheckAlive(handler);
}

// Adds policy switches and drains, for a port that operates.
void AddLevers(OperatorHandler* handler, LiveSource& source) {
  source.set_policy = [handler](const v1::PolicySetting& setting, const std::string& who) {
    return AskPolicy(handler, setting, who);
  };
  source.drain_worker = [handler](const std::string& worker_id, const std::string& who) {
    return ChangeWorker(handler, &OperatorHandler::DrainWorker, "drain worker", worker_id, who);
  };
  source.undrain_worker = [handler](const std::string& worker_id, const std::string& who) {
    return ChangeWorker(handler, &OperatorHandler::UndrainWorker, "undrain worker", worker_id, who);
  };
  for (const core::PolicyInfo& policy : core::RegisteredPolicies()) source.policies.emplace_back(policy.name);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> OpenWeb(const WebOptions& options, OperatorHandler* handler,
                                                    Authenticator* authenticator,
                                                    std::shared_ptr<const LiveHistory> history,
                                                    StateExtras extras) {
  HttpServer::Options http;
  http.listen = options.listen;
  http.tls_cert = options.tls.cert;
  http.tls_key = options.tls.key;
  http.tls_ca = options.tls.ca;
  if (options.authenticate) {
    http.authenticate = [authenticator](const HttpCaller& caller) {
      return authenticator->HttpOperator(caller.authorization, caller.names, caller.address,
                                         caller.acts ? Role::kOperate : Role::kRead);
    };
  }
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Bind(std::move(http));
  if (!server.ok()) return server;
  LiveSource source;
  source.state = [handler, extras = std::move(extras)] { return ReadState(handler, extras); };
  source.alive = [handler] { return CheckAlive(*handler); };
  source.ready = [handler] { return CheckReady(*handler); };
  if (options.operates) AddLevers(handler, source);
  AddLivePage(**server, std::move(history), std::move(source));
  (*server)->Start();
  return server;
}

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
