#include "router/app/router_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/router_instance.h"
#include "common/base/spdlog.h"
#include "common/net/grpc_log.h"
#include "router/admin/web.h"
#include "router/core/shadow/shadowed_policy.h"
#include "router/record/log_writer.h"
#include "router/record/recorder.h"

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
struct Made {
  std::unique_ptr<Authenticator> client_authenticator, admin_authenticator;
  ClientSecrets secrets;
  DecisionThread::Parts parts;
};

absl::StatusOr<Made> Make(const RouterOptions& options) {
  if (absl::Status status = CheckPorts(options); !status.ok()) return status;
  Made made;
  auto client = MakeAuthenticator("client API", options.client_tokens, "client_tokens");
  if (!client.ok()) return client.status();
  made.client_authenticator = *std::move(client);
  auto admin = MakeAuthenticator("admin API", options.admin_tokens, "admin_tokens");
  if (!admin.ok()) return admin.status();
  made.admin_authenticator = *std::move(admin);
  if (!options.resume_key_file.empty()) {
    absl::StatusOr<TicketKeys> keys = TicketKeys::Open(options.resume_key_file);
    if (!keys.ok()) {
      return absl::Status(keys.status().code(), absl::StrCat("--resume_key_file: ", keys.status().message()));
    }
    made.secrets.tickets = ResumeTickets(*std::move(keys), options.resume_timeout);
  }
  DecisionThread::Parts& parts = made.parts;
  core::StopSignal stop, stop_shadows;
  if (options.decide_budget > absl::ZeroDuration()) {
    parts.budget = std::make_shared<DecideBudget>(options.decide_budget);
    stop = [budget = parts.budget] { return budget->Over(); };
    stop_shadows = [budget = parts.budget] { return budget->ShadowsOver(); };
  }
  parts.policies = [shadows = options.shadow, stop, stop_shadows](const core::PolicySetting& setting) {
    core::PolicyOptions with_stop = setting.options;
    with_stop.stop = stop;
    return core::MakeShadowedPolicy(setting.name, with_stop, shadows, stop_shadows);
  };
  if (auto policy = parts.policies(options.policy_setting()); !policy.ok()) return policy.status();
  auto lookahead = core::MakeLookahead(options.lookahead);
  if (!lookahead.ok()) return lookahead.status();
  if (absl::Status status = core::CheckKvGate(options.admission, **lookahead); !status.ok()) return status;
  parts.lookahead = *std::move(lookahead);
  parts.first_id = RequestIds::FirstAt(absl::Now());
  parts.instance =
      options.term > 0 ? kElected + options.term : static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
  return made;
}

}  // namespace

absl::Status RouterServer::Check(const RouterOptions& options) {
  return Make(options).status();
}

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(RouterOptions options) {
  absl::StatusOr<Made> made = Make(options);
  if (!made.ok()) return made.status();
  if (!options.decision_log.empty()) {
    auto writer = record::LogWriter::Open({options.decision_log, options.decision_log_bytes});
    if (!writer.ok()) {
      return absl::Status(writer.status().code(),
                          absl::StrCat("--decision_log: ", writer.status().message()));
    }
    made->parts.recorder = std::make_unique<record::Recorder>(
        *std::move(writer), record::SessionInfo{options.version, made->parts.first_id}, options.scheduler(),
        options.policy_setting(), options.lookahead);
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
  DecisionThread::Hooks hooks;
  hooks.on_serving = [self](bool serving) { self->SetInferenceServing(serving); };
  hooks.on_step = [self](const std::shared_ptr<const StepSummary>& summary) {
    self->steps_.Publish(summary);
    if (self->web_wanted_) self->history_->OnStep(*summary, absl::Now());
  };
  router->web_wanted_ = !options.http_listen.empty();
  router->thread_ = std::make_unique<DecisionThread>(options, std::move(made->parts), std::move(hooks));
  DecisionThread* thread = router->thread_.get();
  router->client_authenticator_ = std::move(made->client_authenticator);
  router->admin_authenticator_ = std::move(made->admin_authenticator);
  router->inference_ = std::make_unique<InferenceService>(
      thread, router->client_authenticator_.get(), options.limits, options.stream, std::move(made->secrets));
  router->link_ = std::make_unique<WorkerLinkService>(thread, options.bind_worker_id, options.limits);
  router->chains_ = std::make_unique<ChainPoolService>(options.chains, options.bind_worker_id, [thread] {
    return thread->arrivals().PerSecond(MonotonicNow());
  });
  router->admin_ =
      std::make_unique<AdminService>(thread, router->admin_authenticator_.get(), &router->steps_);
  if (absl::Status status = router->OpenPorts(options); !status.ok()) return status;
  if (router->web_wanted_) {
    auto web = OpenWeb({options.http_listen, options.admin_tls, !options.admin_tokens.empty()}, thread,
                       router->admin_authenticator_.get(), router->history_);
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
  if (thread_ != nullptr) thread_->Stop();
  if (chains_ != nullptr) chains_->Stop();
  // Its threads ask the decision thread, which still answers that it has ended.
  history_->Close();
  web_.reset();
  steps_.Close();
  // What is still open after this gets cancelled; streams have been told to end.
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(1);
  for (Port* port : {&client_, &own_worker_port_, &admin_port_}) {
    if (port->server != nullptr) port->server->Shutdown(deadline);
  }
  for (Port* port : {&client_, &own_worker_port_, &admin_port_}) port->server.reset();
}

}  // namespace bfio::router
