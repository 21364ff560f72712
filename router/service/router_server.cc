#include "router/service/router_server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/address.h"
#include "common/net/channel.h"
#include "router/core/shadow/shadowed_policy.h"
#include "router/record/log_writer.h"

namespace bfio::router {
namespace {

constexpr const char* kInference = "bfio.v1.Inference";
constexpr const char* kWorkerLink = "bfio.v1.WorkerLink";
constexpr const char* kAdmin = "bfio.v1.Admin";
// Prompts and step reports are the largest messages: 131,072 ids of up to 5 bytes, some requests at once.
constexpr int kMaxMessageBytes = 16 << 20;

absl::StatusOr<std::unique_ptr<grpc::Server>> Listen(const std::string& listen,
                                                     std::vector<grpc::Service*> services,
                                                     std::string& bound) {
  absl::StatusOr<Address> address = ParseAddress(listen, /*port_may_be_0=*/true);
  if (!address.ok()) return address.status();
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  int port = 0;
  builder.AddListeningPort(address->ToString(), grpc::InsecureServerCredentials(), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address->ToString(),
                                               ": the port is taken or the ",
                                               "address is not this machine's"));
  }
  address->port = static_cast<uint16_t>(port);
  bound = address->ToString();
  return server;
}

void SetHealth(grpc::Server* server, const char* service, bool serving) {
  if (auto* health = server->GetHealthCheckService(); health != nullptr)
    health->SetServingStatus(service, serving);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(RouterOptions options) {
  std::shared_ptr<DecideBudget> budget;
  if (options.decide_budget > absl::ZeroDuration()) {
    budget = std::make_shared<DecideBudget>(options.decide_budget);
    options.policy_options.stop = [budget] { return budget->Over(); };
  }
  auto policy = core::MakeShadowedPolicy(options.policy, options.policy_options, options.shadow);
  if (!policy.ok()) return policy.status();
  auto lookahead = core::MakeLookahead(options.lookahead);
  if (!lookahead.ok()) return lookahead.status();
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
    // What gRPC has to say (of a taken port, of a peer that hung up) is said by us where it matters.
    gpr_set_log_function([](gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); });
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)plugins;

  std::unique_ptr<RouterServer> router(new RouterServer);
  RouterServer* self = router.get();
  DecisionLoop::Hooks hooks;
  hooks.on_serving = [self](bool serving) { self->SetInferenceServing(serving); };
  hooks.on_step = [self](const auto& summary) { self->steps_.Publish(summary); };
  router->loop_ = std::make_unique<DecisionLoop>(options, *std::move(policy), *std::move(lookahead),
                                                 std::move(hooks), std::move(budget), std::move(log));
  router->inference_ = std::make_unique<InferenceService>(router->loop_.get(), options.limits);
  router->link_ = std::make_unique<WorkerLinkService>(router->loop_.get());
  router->admin_ = std::make_unique<AdminService>(router->loop_.get(), &router->steps_);

  auto server = Listen(options.listen, {router->inference_.get(), router->link_.get()}, router->address_);
  if (!server.ok()) return server.status();
  router->server_ = *std::move(server);
  auto admin = Listen(options.admin_listen, {router->admin_.get()}, router->admin_address_);
  if (!admin.ok()) return admin.status();
  router->admin_server_ = *std::move(admin);

  MutexLock lock(&router->health_mutex_);
  SetHealth(router->server_.get(), kWorkerLink, true);
  SetHealth(router->server_.get(), kInference, router->serving_);
  SetHealth(router->admin_server_.get(), kAdmin, true);
  router->health_ready_ = true;
  return router;
}

void RouterServer::SetInferenceServing(bool serving) {
  MutexLock lock(&health_mutex_);
  serving_ = serving;
  if (health_ready_) SetHealth(server_.get(), kInference, serving);
}

void RouterServer::Shutdown() {
  {
    MutexLock lock(&health_mutex_);
    health_ready_ = false;
    if (server_ != nullptr && server_->GetHealthCheckService() != nullptr) {
      server_->GetHealthCheckService()->SetServingStatus(false);
    }
  }
  if (loop_ != nullptr) loop_->Stop();
  steps_.Close();
  // What is still open after this gets cancelled; streams of the loop have been told to end.
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(1);
  for (grpc::Server* server : {server_.get(), admin_server_.get()}) {
    if (server != nullptr) server->Shutdown(deadline);
  }
  server_.reset();
  admin_server_.reset();
}

}  // namespace bfio::router
