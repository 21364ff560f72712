#include "router/app/router_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"
#include "common/net/grpc_log.h"
#include "router/admin/web.h"
#include "router/core/shadow/shadowed_policy.h"
#include "router/record/log_writer.h"

namespace bfio::router {
namespace {

constexpr const char* kInference = "bfio.v1.Inference";
constexpr const char* kWorkerLink = "bfio.v1.WorkerLink";
constexpr const char* kAdmin = "bfio.v1.Admin";
void SetHealth(grpc::Server* server, const char* service, bool serving) {
  if (auto* health = server->GetHealthCheckService(); health != nullptr)
    health->SetServingStatus(service, serving);
}

// What settings name, made.
struct Parts {
  std::unique_ptr<Gate> client_gate, admin_gate;
  std::unique_ptr<core::Policy> policy;
  std::unique_ptr<core::Lookahead> lookahead;
};

absl::StatusOr<Parts> MakeParts(const RouterOptions& options) {
  if (absl::Status status = CheckPorts(options); !status.ok()) return status;
  auto client_gate = MakeGate("client API", options.client_tokens, "client_tokens");
  if (!client_gate.ok()) return client_gate.status();
  auto admin_gate = MakeGate("admin API", options.admin_tokens, "admin_tokens");
  if (!admin_gate.ok()) return admin_gate.status();
  auto policy = core::MakeShadowedPolicy(options.policy, options.policy_options, options.shadow);
  if (!policy.ok()) return policy.status();
  auto lookahead = core::MakeLookahead(options.lookahead);
  if (!lookahead.ok()) return lookahead.status();
  if (absl::Status status = core::CheckKvGate(options.admission, **lookahead); !status.ok()) return status;
  return Parts{*std::move(client_gate), *std::move(admin_gate), *std::move(policy), *std::move(lookahead)};
}

}  // namespace

absl::Status RouterServer::Check(const RouterOptions& options) {
  return MakeParts(options).status();
}

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(RouterOptions options) {
  std::shared_ptr<DecideBudget> budget;
  if (options.decide_budget > absl::ZeroDuration()) {
    budget = std::make_shared<DecideBudget>(options.decide_budget);
    options.policy_options.stop = [budget] { return budget->Over(); };
  }
  absl::StatusOr<Parts> parts = MakeParts(options);
  if (!parts.ok()) return parts.status();
  std::unique_ptr<record::LogSink> log;
  if (!options.decision_log.empty()) {
    auto writer = record::LogWriter::Open({options.decision_log, options.decision_log_bytes});
    if (!writer.ok()) {
      return absl::Status(writer.status().code(),
                          absl::StrCat("--decision_log: ", writer.status().message()));
    }
    log = *std::move(writer);
  }
  // Once per process, before the first server is built.
  static const bool plugins = [] {
    InstallGrpcLog();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)plugins;

  std::unique_ptr<RouterServer> router(new RouterServer);
  RouterServer* self = router.get();
  DecisionLoop::Hooks hooks;
  hooks.on_serving = [self](bool serving) { self->SetInferenceServing(serving); };
  hooks.on_step = [self](const auto& summary) {
    self->steps_.Publish(summary);
    if (self->web_wanted_) self->history_->OnStep(*summary, absl::Now());
  };
  router->web_wanted_ = !options.http_listen.empty();
  router->loop_ =
      std::make_unique<DecisionLoop>(options, std::move(parts->policy), std::move(parts->lookahead),
                                     std::move(hooks), std::move(budget), std::move(log));
  router->client_gate_ = std::move(parts->client_gate);
  router->admin_gate_ = std::move(parts->admin_gate);
  router->inference_ =
      std::make_unique<InferenceService>(router->loop_.get(), router->client_gate_.get(), options.limits);
  router->link_ = std::make_unique<WorkerLinkService>(router->loop_.get(), options.bind_worker_id);
  router->chains_ = std::make_unique<ChainPoolService>(
      options.chains, options.bind_worker_id,
      [loop = router->loop_.get()] { return loop->arrivals().PerSecond(MonotonicNow()); });
  router->admin_ =
      std::make_unique<AdminService>(router->loop_.get(), router->admin_gate_.get(), &router->steps_);
  if (absl::Status status = router->OpenPorts(options); !status.ok()) return status;
  if (router->web_wanted_) {
    auto web = OpenWeb(options, router->loop_.get(), router->admin_gate_.get(), router->history_);
    if (web.ok()) {
      router->web_ = *std::move(web);
    } else if (!options.http_may_fail) {
      return absl::Status(web.status().code(), absl::StrCat("--http_listen: ", web.status().message()));
    } else {
      spdlog::warn("no live page and no /metrics: {} (--http_listen names another port)",
                   std::string(web.status().message()));
    }
  }

  MutexLock lock(&router->health_mutex_);
  SetHealth(router->worker_port().server.get(), kWorkerLink, true);
  SetHealth(router->client_.server.get(), kInference, router->serving_);
  SetHealth(router->admin_port_.server.get(), kAdmin, true);
  router->health_ready_ = true;
  return router;
}

absl::Status RouterServer::OpenPorts(const RouterOptions& options) {
  PortSpec client = {
      options.listen, options.client_tls, MaxClientMessageBytes(options.limits), {inference_.get()}};
  const PortSpec worker = {
      options.worker_listen, options.worker_tls, kMaxWorkerMessageBytes, {link_.get(), chains_.get()}};
  const PortSpec admin = {options.admin_listen, options.admin_tls, kMaxAdminMessageBytes, {admin_.get()}};
  if (options.worker_listen.empty()) {
    client.max_message_bytes = std::max(client.max_message_bytes, kMaxWorkerMessageBytes);
    client.services.push_back(link_.get());
    client.services.push_back(chains_.get());
  }
  const auto open = [](const PortSpec& spec, Port& port) {
    absl::StatusOr<Port> opened = OpenPort(spec);
    if (opened.ok()) port = *std::move(opened);
    return opened.status();
  };
  absl::Status status = open(client, client_);
  if (status.ok() && !options.worker_listen.empty()) status = open(worker, own_worker_port_);
  if (status.ok()) status = open(admin, admin_port_);
  return status;
}

void RouterServer::SetInferenceServing(bool serving) {
  MutexLock lock(&health_mutex_);
  serving_ = serving;
  if (health_ready_) SetHealth(client_.server.get(), kInference, serving);
}

void RouterServer::Shutdown() {
  {
    MutexLock lock(&health_mutex_);
    health_ready_ = false;
    if (client_.server != nullptr && client_.server->GetHealthCheckService() != nullptr) {
      client_.server->GetHealthCheckService()->SetServingStatus(false);
    }
  }
  if (loop_ != nullptr) loop_->Stop();
  if (chains_ != nullptr) chains_->Stop();
  // Its threads ask the loop, which still answers that it has ended.
  history_->Close();
  web_.reset();
  steps_.Close();
  // What is still open after this gets cancelled; streams of the loop have been told to end.
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(1);
  for (Port* port : {&client_, &own_worker_port_, &admin_port_}) {
    if (port->server != nullptr) port->server->Shutdown(deadline);
  }
  for (Port* port : {&client_, &own_worker_port_, &admin_port_}) port->server.reset();
}

}  // namespace bfio::router
