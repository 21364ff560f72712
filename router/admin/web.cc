#include "router/admin/web.h"

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "router/admin/live/live_page.h"
#include "router/core/policy/policy.h"

namespace bfio::router {
namespace {

// Runs `ask` on the decision thread and waits for what it says. What it writes must be shared with it: the
// caller may have given up when it runs.
absl::Status Ask(DecisionLoop* loop, std::function<absl::Status(DecisionLoop&)> ask) {
  struct Answer {
    Mutex mutex;
    bool done ABSL_GUARDED_BY(mutex) = false;
    absl::Status status ABSL_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  const absl::Status posted = loop->PostCall(DecisionLoop::Caller::kOperator,
                                             [answer, ask = std::move(ask)](DecisionLoop& decision_loop) {
                                               absl::Status status = ask(decision_loop);
                                               MutexLock lock(&answer->mutex);
                                               answer->status = std::move(status);
                                               answer->done = true;
                                             });
  if (!posted.ok()) return posted;
  MutexLock lock(&answer->mutex);
  if (!answer->mutex.AwaitWithTimeout(absl::Condition(&answer->done), kWebPatience)) {
    return absl::DeadlineExceededError("the router is too busy to answer");
  }
  return answer->status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> OpenWeb(const RouterOptions& options, DecisionLoop* loop,
                                                    Gate* gate, std::shared_ptr<const LiveHistory> history) {
  HttpServer::Options http;
  http.listen = options.http_listen;
  http.tls_cert = options.admin_tls.cert;
  http.tls_key = options.admin_tls.key;
  http.tls_ca = options.admin_tls.ca;
  if (!options.admin_tokens.empty()) {
    http.gate = [gate](const std::string& authorization, const std::string& peer) {
      return gate->EnterWith(authorization, peer);
    };
  }
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Bind(std::move(http));
  if (!server.ok()) return server;
  LiveSource source;
  source.state = [loop]() -> absl::StatusOr<v1::ClusterState> {
    const auto state = std::make_shared<v1::ClusterState>();
    const absl::Status asked = Ask(loop, [state](DecisionLoop& decision_loop) {
      decision_loop.FillState(*state);
      return absl::OkStatus();
    });
    if (!asked.ok()) return asked;
    return std::move(*state);
  };
  source.alive = [loop] {
    const absl::Duration since = loop->SinceTurn();
    if (since < kStuckAfter) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the decision thread is stuck: ",
                                               absl::FormatDuration(absl::Trunc(since, absl::Seconds(1)))));
  };
  source.set_policy = [loop](const v1::PolicySetting& setting) {
    return Ask(loop, [setting](DecisionLoop& decision_loop) { return decision_loop.SetPolicy(setting); });
  };
  source.drain_worker = [loop](const std::string& worker_id) {
    return Ask(loop,
               [worker_id](DecisionLoop& decision_loop) { return decision_loop.DrainWorker(worker_id); });
  };
  for (const core::PolicyInfo& policy : core::RegisteredPolicies()) source.policies.emplace_back(policy.name);
  AddLivePage(**server, std::move(history), std::move(source));
  (*server)->Start();
  return server;
}

}  // namespace bfio::router
