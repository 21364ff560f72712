#include "router/app/router_server.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/annotated.h"
#include "common/base/router_instance.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/net/exposure.h"
#include "common/net/grpc_log.h"
#include "common/telemetry/log.h"
#include "router/admin/web.h"
#include "router/app/engines.h"
#include "router/core/policy/policy.h"
#include "router/engine_link/http/http_engine.h"
#include "router/engine_link/http/pod_watch.h"
#include "router/engine_link/steps/engine_steps_service.h"
#include "router/frontend/tokenizer/model_files.h"
#include "router/record/log_writer.h"
#include "router/record/recorder.h"

namespace bfio::router {
namespace {

// Resident memory of this process; 0 where the system does not report it.
uint64_t ResidentBytes() {
  // In pages: the address space, then the resident size (proc(5)).
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  if (!(statm >> size >> resident)) return 0;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// More requests than all slots together, for the streams of a gateway's connection.
constexpr int kMostRunning = 1 << 16;
// Calls of an operator's connection.
constexpr int kMostAdminCalls = 128;
constexpr const char* kInference = "bfio.v1.Inference";
constexpr const char* kWorkerLink = "bfio.v1.WorkerLink";
constexpr const char* kAdmin = "bfio.v1.Admin";
// For streams that are ending.
constexpr std::chrono::seconds kLeave{1};
// The services that gateways probe at a picker, beside its own.
constexpr const char* kLiveness = "liveness";
constexpr const char* kReadiness = "readiness";
// Names of the ports in RouterState; compared by address.
constexpr const char* kClientPort = "client";
constexpr const char* kPickerPort = "picker";
constexpr const char* kWorkerPort = "worker";
constexpr const char* kAdminPort = "admin";

// The protocol of the API for gateways; null: there is none.
const gateway::Protocol* GatewayProtocol(const ClientApis& apis) {
  if (apis.vllm) return &gateway::VllmProtocol();
  return apis.sglang ? &gateway::SglangProtocol() : nullptr;
}

void AddMessages(const FirstMessages::Counts& counts, v1::PortState& port) {
  port.set_calls_receiving(port.calls_receiving() + static_cast<uint32_t>(counts.receiving));
  port.set_calls_waiting(port.calls_waiting() + static_cast<uint32_t>(counts.waiting));
  port.set_calls_timed_out(port.calls_timed_out() + counts.too_late);
}

// The objects that the settings describe.
struct Components {
  std::unique_ptr<Authenticator> client_authenticator, picker_authenticator, admin_authenticator;
  ClientSecrets secrets;
  // Null: --tokenizer is empty.
  std::shared_ptr<const ModelFiles> model;
  DecisionThread::Parts parts;
};

absl::StatusOr<Components> Make(const RouterOptions& options) {
  BFIO_RETURN_IF_ERROR(CheckPorts(options));
  Components components;
  BFIO_ASSIGN_OR_RETURN(components.client_authenticator,
                        MakeAuthenticator("client API", options.client_tokens, "client_tokens"));
  // A port's own: it tells that port's connections which of them have authenticated calls.
  if (!options.picker_listen.empty()) {
    BFIO_ASSIGN_OR_RETURN(components.picker_authenticator,
                          MakeAuthenticator("endpoint picker", options.client_tokens, "client_tokens"));
  }
  BFIO_ASSIGN_OR_RETURN(components.admin_authenticator,
                        MakeAuthenticator("admin API", options.admin_tokens, "admin_tokens"));
  if (!options.resume_key_file.empty()) {
    BFIO_ASSIGN_OR_RETURN(TicketKeys keys,
                          Annotated("--resume_key_file", TicketKeys::Open(options.resume_key_file)));
    components.secrets.tickets = ResumeTickets(std::move(keys), options.client_timeout);
  }
  if (!options.tokenizer.empty()) {
    BFIO_ASSIGN_OR_RETURN(ModelFiles model, Annotated("--tokenizer", LoadModelFiles(options.tokenizer)));
    components.model = std::make_shared<const ModelFiles>(std::move(model));
  }
  DecisionThread::Parts& parts = components.parts;
  core::StopSignal stop;
  if (options.decide_budget > absl::ZeroDuration()) {
    parts.budget = std::make_shared<DecideBudget>(options.decide_budget);
    stop = [budget = parts.budget] { return budget->Over(); };
  }
  parts.policies = [stop](const core::PolicySetting& setting) {
    core::PolicyOptions with_stop = setting.options;
    with_stop.stop = stop;
    return core::MakePolicy(setting.name, with_stop);
  };
  if (auto policy = parts.policies(options.policy); !policy.ok()) return policy.status();
  BFIO_ASSIGN_OR_RETURN(auto lookahead, core::MakeLookahead(options.lookahead));
  BFIO_RETURN_IF_ERROR(core::CheckKvAdmission(options.admission, *lookahead));
  parts.lookahead = std::move(lookahead);
  parts.first_id = RequestIds::FirstAt(absl::Now());
  parts.instance =
      options.term > 0 ? kElected + options.term : static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
  return components;
}

}  // namespace

absl::Status RouterServer::Check(const RouterOptions& options) {
  BFIO_RETURN_IF_ERROR(Make(options).status());
  const std::string& log = options.decision_log;
  const std::string folder = std::filesystem::path(log).parent_path();
  if (log.empty() || access(log.c_str(), W_OK) == 0 ||
      access(folder.empty() ? "." : folder.c_str(), W_OK) == 0)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--decision_log: cannot write ", log, ": ", std::strerror(errno)));
}

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(RouterOptions options) {
  BFIO_ASSIGN_OR_RETURN(Components components, Make(options));
  if (!options.decision_log.empty()) {
    BFIO_ASSIGN_OR_RETURN(
        auto writer, Annotated("--decision_log",
                               record::LogWriter::Open({options.decision_log, options.decision_log_bytes})));
    components.parts.recorder = std::make_unique<record::Recorder>(
        std::move(writer), record::SessionInfo{options.version, components.parts.first_id},
        options.scheduler(), options.policy, options.lookahead);
  }
  // Once per process, before the first server is built.
  static const bool plugins = [] {
    InstallGrpcLog();
    return true;
  }();
  (void)plugins;

  std::unique_ptr<RouterServer> router(new RouterServer);
  RouterServer* self = router.get();
  router->client_authenticator_ = std::move(components.client_authenticator);
  router->picker_authenticator_ = std::move(components.picker_authenticator);
  router->admin_authenticator_ = std::move(components.admin_authenticator);
  router->MakeHealth(options);
  router->model_ = std::move(components.model);
  DecisionThread::Hooks hooks;
  hooks.on_serving = [self, apis = options.client_apis](bool serving) {
    if (apis.bfio) self->client_health_->SetServing(kInference, serving);
    if (const auto* protocol = GatewayProtocol(apis); protocol != nullptr)
      self->client_health_->SetServing(protocol->traits.name, serving);
    if (self->picker_health_ == nullptr) return;
    for (const char* service : {"", kReadiness, picker::kServiceName})
      self->picker_health_->SetServing(service, serving);
  };
  hooks.on_step = [self](const std::shared_ptr<const StepSummary>& summary) {
    self->steps_.Publish(summary);
    if (self->web_wanted_) self->history_->OnStep(*summary, absl::Now());
  };
  router->web_wanted_ = !options.http_listen.empty();
  router->drain_timeout_ = options.drain_timeout;
  const uint64_t instance = components.parts.instance;
  router->thread_ = std::make_unique<DecisionThread>(options, std::move(components.parts), std::move(hooks));
  DecisionThread* const thread = router->thread_.get();
  if (!options.engines.empty()) {
    const auto make_client = [self](const EngineAddress& engine) {
      return engine.protocol == "http" ? NewHttpEngine(engine, self->text_ratio_, self->renderers_)
                                       : NewEngineClient(engine);
    };
    router->engines_ = std::make_unique<EngineLink>(EngineLink::Options{.engines = options.engines,
                                                                        .resolve_pool = WatchPools(),
                                                                        .patience = options.step_timeout,
                                                                        .instance = instance,
                                                                        .make_client = make_client},
                                                    thread);
  }
  router->MakeServices(options, std::move(components.secrets));
  BFIO_RETURN_IF_ERROR(router->OpenPorts(options));
  if (router->web_wanted_) {
    auto web = OpenWeb(
        {options.http_listen, options.admin_tls, !options.admin_tokens.empty(), HttpOperates(options)},
        thread, router->admin_authenticator_.get(), router->history_,
        [self](v1::ClusterState& state) { self->AddPortsAndProcess(state); });
    if (web.ok()) {
      router->web_ = *std::move(web);
    } else if (!options.http_may_fail) {
      return Annotated("--http_listen", web.status());
    } else {
      spdlog::warn("no live page and no /metrics: {} (--http_listen sets another port)",
                   std::string(web.status().message()));
    }
  }
  HealthService& of_workers =
      router->worker_health_ == nullptr ? *router->client_health_ : *router->worker_health_;
  of_workers.SetServing(kWorkerLink, true);
  router->admin_health_->SetServing(kAdmin, true);
  return router;
}

void RouterServer::MakeHealth(const RouterOptions& options) {
  worker_authenticator_ = std::make_unique<Authenticator>("worker link", nullptr);
  std::vector<std::string> at_clients;
  if (options.client_apis.bfio) at_clients.emplace_back(kInference);
  if (const auto* protocol = GatewayProtocol(options.client_apis); protocol != nullptr)
    at_clients.emplace_back(protocol->traits.name);
  if (options.worker_listen.empty()) {
    at_clients.emplace_back(kWorkerLink);
  } else {
    worker_health_ =
        std::make_unique<HealthService>(std::vector<std::string>{kWorkerLink}, worker_authenticator_.get());
  }
  client_health_ = std::make_unique<HealthService>(at_clients, client_authenticator_.get());
  admin_health_ =
      std::make_unique<HealthService>(std::vector<std::string>{kAdmin}, admin_authenticator_.get());
  if (options.picker_listen.empty()) return;
  picker_health_ = std::make_unique<HealthService>(
      std::vector<std::string>{picker::kServiceName, kLiveness, kReadiness}, picker_authenticator_.get());
  picker_health_->SetServing(kLiveness, true);
  picker_health_->SetServing("", false);
}

void RouterServer::MakeServices(const RouterOptions& options, ClientSecrets secrets) {
  DecisionThread* const thread = thread_.get();
  served_model_name_ = options.served_model_name;
  client_messages_ = std::make_unique<FirstMessages>(MessageLimits(MaxClientMessageBytes(options.limits)));
  gateway::GatewayOptions gateways{options.limits, options.stream(), options.served_model_name, model_,
                                   secrets.new_request_id};
  // All engines speak one protocol (ParseEngines).
  gateways.passes = !options.engines.empty() && options.engines.engines.front().protocol ==
                                                    (options.client_apis.vllm ? "vllm" : "sglang");
  const gateway::Protocol* const protocol = GatewayProtocol(options.client_apis);
  if (protocol != nullptr) {
    gateway_ = std::make_unique<gateway::GatewayService>(*protocol, thread, client_authenticator_.get(),
                                                         client_messages_.get(), std::move(gateways));
  }
  const std::shared_ptr<const TicketKeys> keys = secrets.tickets.keys();
  if (options.client_apis.bfio) {
    inference_ =
        std::make_unique<InferenceService>(thread, client_authenticator_.get(), client_messages_.get(),
                                           options.limits, options.stream(), std::move(secrets));
  }
  if (!options.picker_listen.empty()) {
    picker_ =
        std::make_unique<picker::PickerService>(thread, picker_authenticator_.get(),
                                                picker::PickerOptions{.limits = options.limits,
                                                                      .tenant_header = options.tenant_header,
                                                                      .text_ratio = text_ratio_,
                                                                      .renderers = renderers_});
  }
  worker_services_.push_back(std::make_unique<WorkerLinkService>(
      thread, options.bind_worker_id, options.limits, worker_authenticator_.get(),
      MessageLimits(kMaxWorkerMessageBytes), keys));
  if (options.worker_port_service != nullptr) {
    worker_services_.push_back(
        options.worker_port_service({options.bind_worker_id, worker_authenticator_.get()}));
  }
  if (engines_ != nullptr) {
    worker_services_.push_back(std::make_unique<EngineStepsService>(
        engines_.get(), worker_authenticator_.get(), MessageLimits(kMaxWorkerMessageBytes)));
  }
  admin_ = std::make_unique<AdminService>(thread, admin_authenticator_.get(), &steps_,
                                          [this](v1::ClusterState& state) { AddPortsAndProcess(state); });
}

absl::Status RouterServer::OpenPorts(const RouterOptions& options) {
  const bool together = options.worker_listen.empty();
  PortSpec client{.listen = options.listen,
                  .tls = options.client_tls,
                  .max_message_bytes = MaxClientMessageBytes(options.limits),
                  .services = {inference_.get(), gateway_.get(), client_health_.get()},
                  .authenticators = {client_authenticator_.get()},
                  .messages = {client_messages_.get(), client_health_->first_messages()},
                  .max_streams = static_cast<int>(options.max_waiting) + kMostRunning,
                  .reflection = options.client_tokens.empty()};
  PortSpec worker{.listen = options.worker_listen,
                  .tls = options.worker_tls,
                  .max_message_bytes = kMaxWorkerMessageBytes,
                  .services = {worker_health_.get()},
                  .authenticators = {worker_authenticator_.get()},
                  .bounds_messages = true};
  const PortSpec admin{.listen = options.admin_listen,
                       .tls = options.admin_tls,
                       .max_message_bytes = kMaxAdminMessageBytes,
                       .services = {admin_.get(), admin_health_.get()},
                       .authenticators = {admin_authenticator_.get()},
                       .messages = {admin_->first_messages(), admin_health_->first_messages()},
                       .max_streams = kMostAdminCalls,
                       .memory_bytes = size_t{64} << 20,
                       .reflection = options.admin_tokens.empty()};
  if (worker_health_ != nullptr) worker.messages.push_back(worker_health_->first_messages());
  for (const auto& service : worker_services_) {
    worker.services.push_back(service.get());
    (together ? client : worker).messages.push_back(service->first_messages());
  }
  if (together) {
    client.max_message_bytes = std::max(client.max_message_bytes, kMaxWorkerMessageBytes);
    for (const auto& service : worker_services_) client.services.push_back(service.get());
    client.authenticators.push_back(worker_authenticator_.get());
  }
  const auto open = [this](const char* name, const PortSpec& spec, Port& port) {
    BFIO_ASSIGN_OR_RETURN(port, OpenPort(spec));
    MutexLock lock(&ports_mutex_);
    opened_.push_back({name,
                       port.listener.get(),
                       {spec.authenticators.begin(), spec.authenticators.end()},
                       FollowTlsFiles(spec.tls).cert});
    return absl::OkStatus();
  };
  absl::Status status = open(kClientPort, client, client_);
  if (status.ok() && picker_ != nullptr) {
    // Envoy sends a body in parts of at most 1 MiB, or whole.
    status = open(kPickerPort,
                  {.listen = options.picker_listen,
                   .tls = options.client_tls,
                   .max_message_bytes = picker::kMaxMessageBytes,
                   .services = {picker_.get(), picker_health_.get()},
                   .authenticators = {picker_authenticator_.get()},
                   .messages = {picker_->first_messages(), picker_health_->first_messages()},
                   .max_streams = static_cast<int>(options.max_waiting) + kMostRunning},
                  picker_port_);
  }
  if (status.ok() && !together) status = open(kWorkerPort, worker, own_worker_port_);
  if (status.ok()) status = open(kAdminPort, admin, admin_port_);
  return status;
}

void RouterServer::AddPortsAndProcess(v1::ClusterState& state) {
  state.set_served_model_name(!served_model_name_.empty() ? served_model_name_
                                                          : ModelNameOf(model_ ? model_->directory : ""));
  MutexLock lock(&ports_mutex_);
  const bool together = own_worker_port_.listener == nullptr;
  for (const OpenedPort& opened : opened_) {
    v1::PortState& port = *state.add_ports();
    port.set_port(opened.name);
    const ConnectionListener::Counts counts = opened.listener->counts();
    port.set_connections(static_cast<uint32_t>(counts.connections));
    port.set_unauthenticated_connections(static_cast<uint32_t>(counts.unauthenticated));
    port.set_connections_refused(counts.refused);
    port.set_connections_dropped(counts.dropped);
    uint64_t refused = 0;
    for (const Authenticator* authenticator : opened.authenticators) refused += authenticator->refused();
    port.set_logins_refused(refused);
    int64_t streams = 0;
    if (opened.name == kClientPort) {
      AddMessages(client_messages_->counts(), port);
      if (inference_ != nullptr) streams += inference_->streams();
      if (gateway_ != nullptr) streams += gateway_->streams();
    }
    if (opened.name == kPickerPort) {
      AddMessages(picker_->first_messages()->counts(), port);
      streams += picker_->streams();
    }
    if (opened.name == kWorkerPort || (together && opened.name == kClientPort)) {
      for (const auto& service : worker_services_) {
        AddMessages(service->first_messages()->counts(), port);
        streams += service->sessions();
      }
    }
    if (opened.name == kAdminPort) {
      AddMessages(admin_->first_messages()->counts(), port);
      streams += static_cast<int64_t>(steps_.watchers());
    }
    port.set_streams(static_cast<uint32_t>(streams));
    if (const std::optional<absl::Time> expiry = CertificateExpiry(opened.certificate))
      port.set_certificate_expiry_s(absl::ToUnixSeconds(*expiry));
  }
  v1::ProcessState& process = *state.mutable_process();
  process.set_resident_bytes(ResidentBytes());
  process.set_log_lines_dropped(DroppedLogLines());
  process.set_handshakes_failed(FailedHandshakes());
  int64_t unconsumed = 0, queued = 0;
  for (const auto& service : worker_services_) {
    unconsumed += service->unconsumed_bytes();
    queued += service->queued_bytes();
  }
  process.set_worker_message_bytes(static_cast<uint64_t>(unconsumed));
  process.set_worker_queue_bytes(static_cast<uint64_t>(queued));
}

void RouterServer::Shutdown() {
  if (client_health_ != nullptr) client_health_->Close();
  if (picker_health_ != nullptr) picker_health_->Close();
  // Envoy connects anew at once, to this router's successor, while requests that are here go on.
  std::thread leave_picker;
  if (picker_port_.server != nullptr) {
    picker_port_.listener->Stop();
    const auto latest = std::chrono::system_clock::now() + absl::ToChronoSeconds(drain_timeout_) + kLeave;
    leave_picker = std::thread([server = picker_port_.server.get(), latest] { server->Shutdown(latest); });
  }
  if (thread_ != nullptr) thread_->Stop();
  for (const auto& service : worker_services_) service->Stop();
  if (engines_ != nullptr) engines_->Stop();
  // The history's threads query the decision thread, which still answers that it has ended.
  history_->Close();
  web_.reset();
  steps_.Close();
  if (gateway_ != nullptr) gateway_->Close();
  if (picker_ != nullptr) picker_->Close();
  // Streams are ending; those that are still open after this time are cancelled.
  const auto deadline = std::chrono::system_clock::now() + kLeave;
  for (Port* port : {&client_, &own_worker_port_, &admin_port_}) {
    if (port->listener != nullptr) port->listener->Stop();
    if (port->server != nullptr) port->server->Shutdown(deadline);
  }
  if (leave_picker.joinable()) leave_picker.join();
  {
    MutexLock lock(&ports_mutex_);
    opened_.clear();
  }
  for (Port* port : {&client_, &picker_port_, &own_worker_port_, &admin_port_}) {
    port->server.reset();
    port->listener.reset();
  }
}

namespace {

absl::Status CheckPort(const std::string& listen, const PortSetup& setup, bool insecure) {
  BFIO_ASSIGN_OR_RETURN(const Address address, Annotated(absl::StrCat("--", setup.listen_flag),
                                                         ParseAddress(listen, /*port_may_be_0=*/true)));
  return insecure ? absl::OkStatus() : CheckExposure(address, setup);
}

absl::Status CheckWorkerPort(const RouterOptions& options) {
  if (options.bind_worker_id && options.worker_tls.ca.empty()) {
    return absl::InvalidArgumentError(
        "--bind_worker_id needs --worker_tls with ca=FILE: without it workers present no certificate");
  }
  if (!options.worker_listen.empty()) return absl::OkStatus();
  if (!options.client_tls.enabled() && options.client_tokens.empty() && !options.worker_tls.enabled()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--client_tls, --client_tokens and --worker_tls need --worker_listen: workers must have a port of "
      "their own");
}

}  // namespace

absl::Status CheckPorts(const RouterOptions& options) {
  BFIO_RETURN_IF_ERROR(CheckWorkerPort(options));
  for (const auto& [flags, tls] :
       {std::pair<absl::string_view, const TlsFiles&>{"client_tls", options.client_tls},
        {"worker_tls", options.worker_tls},
        {"admin_tls", options.admin_tls}}) {
    BFIO_RETURN_IF_ERROR(CheckTlsFiles(tls, flags, TlsEnd::kServer));
  }
  const PortSetup client = {"listen", "client_tls", "--client_tls=ca=FILE or --client_tokens",
                            options.client_tls.enabled(),
                            !options.client_tls.ca.empty() || !options.client_tokens.empty()};
  const PortSetup worker = {"worker_listen", "worker_tls", "--worker_tls=ca=FILE",
                            options.worker_tls.enabled(), !options.worker_tls.ca.empty()};
  const PortSetup admin = {"admin_listen", "admin_tls", "--admin_tls=ca=FILE or --admin_tokens",
                           options.admin_tls.enabled(),
                           !options.admin_tls.ca.empty() || !options.admin_tokens.empty()};
  BFIO_RETURN_IF_ERROR(CheckPort(options.listen, client, options.insecure));
  if (!options.picker_listen.empty()) {
    PortSetup picker = client;
    picker.listen_flag = "picker_listen";
    BFIO_RETURN_IF_ERROR(CheckPort(options.picker_listen, picker, options.insecure));
  }
  if (!options.worker_listen.empty()) {
    BFIO_RETURN_IF_ERROR(CheckPort(options.worker_listen, worker, options.insecure));
  }
  if (!options.http_listen.empty()) {
    PortSetup http = admin;
    http.listen_flag = "http_listen";
    BFIO_RETURN_IF_ERROR(CheckPort(options.http_listen, http, options.insecure));
  }
  return CheckPort(options.admin_listen, admin, options.insecure);
}

bool HttpOperates(const RouterOptions& options) {
  const absl::StatusOr<Address> http = ParseAddress(options.http_listen, /*port_may_be_0=*/true);
  const absl::StatusOr<Address> admin = ParseAddress(options.admin_listen, /*port_may_be_0=*/true);
  return http.ok() && admin.ok() && AnswersAt(*admin, *http);
}

absl::StatusOr<std::unique_ptr<Authenticator>> MakeAuthenticator(std::string api, const std::string& tokens,
                                                                 absl::string_view flag) {
  if (tokens.empty()) return std::make_unique<Authenticator>(std::move(api), nullptr);
  BFIO_ASSIGN_OR_RETURN(auto file, Annotated(absl::StrCat("--", flag), TokenFile::Open(tokens)));
  return std::make_unique<Authenticator>(std::move(api), std::move(file));
}

int MaxClientMessageBytes(const RequestLimits& limits) {
  // A token id takes up to 5 bytes, and a resume also sends the tokens that it has received. The bound of the
  // other fields is generous.
  constexpr int64_t kBytesPerToken = 5, kOtherFields = 64 << 10, kMost = 1 << 30;
  const int64_t tokens = int64_t{limits.max_prompt_tokens} + limits.max_new_tokens;
  return static_cast<int>(std::min(kBytesPerToken * tokens + kOtherFields, kMost));
}

}  // namespace bfio::router
