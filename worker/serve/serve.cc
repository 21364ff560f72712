#include "worker/serve/serve.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/auth/ticket_keys.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/net/authenticator.h"
#include "common/net/exposure.h"
#include "common/net/health_service.h"
#include "common/net/port.h"
#include "router/frontend/message_bytes.h"
#include "router/frontend/tokenizer/model_files.h"
#include "router/frontend/tokenizer/model_source.h"
#include "router/frontend/vllm/vllm_service.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/link/worker_process.h"
#include "worker/serve/local_engine.h"

namespace bfio::worker {
namespace {

using router::vllm::VllmService;

constexpr absl::Duration kPoll = absl::Milliseconds(100);

// The ranks' step loops, a thread each.
class Loops {
 public:
  Loops(std::vector<RankParts> parts, LocalEngine& engine) : running_(static_cast<int>(parts.size())) {
    std::vector<Inbox*> inboxes;
    for (size_t i = 0; i < parts.size(); ++i) {
      RankParts& rank = parts[i];
      energy_.push_back(std::move(rank.energy));
      recorders_.push_back(rank.loop.recorder);
      loops_.push_back(std::make_unique<StepLoop>(std::move(rank.loop), std::move(rank.engine),
                                                  std::move(rank.endpoint),
                                                  engine.link(static_cast<int>(i))));
      inboxes.push_back(&loops_.back()->inbox());
    }
    engine.Start(std::move(inboxes));
    for (RankRecorder* recorder : recorders_) recorder->OnStreamUp();
    for (const auto& loop : loops_)
      threads_.emplace_back([this, raw = loop.get()] { running_.OnEnd(raw->Run()); });
  }
  ~Loops() {
    for (const auto& loop : loops_) loop->inbox().OnShutdown("stopped");
    for (std::thread& thread : threads_) thread.join();
  }

  void OnLeaving() {
    for (RankRecorder* recorder : recorders_) recorder->OnLeaving();
  }
  // The first error of a rank.
  absl::Status status() { return running_.status(); }

 private:
  RunningRanks running_;
  std::vector<std::unique_ptr<EnergyMonitor>> energy_;
  std::vector<RankRecorder*> recorders_;
  std::vector<std::unique_ptr<StepLoop>> loops_;
  std::vector<std::thread> threads_;
};

// The service that gateways call. The engine outlives it.
class Front {
 public:
  Front(const ServeOptions& serve, int32_t page_tokens, LocalEngine& engine,
        std::shared_ptr<const router::ModelFiles> model)
      : messages_(MessageLimits(router::MaxClientMessageBytes(limits_))),
        health_({VllmService::kName}, &authenticator_),
        service_(
            &engine, &authenticator_, &messages_,
            router::gateway::GatewayOptions{limits_,
                                            {},
                                            serve.served_model_name,
                                            std::make_shared<const router::ModelSource>(std::move(model)),
                                            [] { return absl::StrCat("bfio-", RandomId()); },
                                            router::gateway::RankView::kEach,
                                            page_tokens}) {}
  ~Front() { Close(); }

  absl::Status Open(const std::string& listen) {
    absl::StatusOr<Port> port = OpenPort({.listen = listen,
                                          .max_message_bytes = router::MaxClientMessageBytes(limits_),
                                          .services = {&service_, &health_},
                                          .authenticators = {&authenticator_},
                                          .reflection = true});
    if (!port.ok())
      return absl::Status(port.status().code(), absl::StrCat("--listen: ", port.status().message()));
    port_ = *std::move(port);
    return absl::OkStatus();
  }
  const std::string& address() const { return port_.address; }
  void SetServing(bool serving) { health_.SetServing(VllmService::kName, serving); }
  // Calls that are still open after a second are cancelled.
  void Close() {
    if (port_.server == nullptr) return;
    health_.Close();
    service_.Close();
    port_.listener->Stop();
    port_.server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    port_.server.reset();
    port_.listener.reset();
  }

 private:
  const router::RequestLimits limits_;
  Authenticator authenticator_{"client API", nullptr};
  FirstMessages messages_;
  HealthService health_;
  VllmService service_;
  Port port_;
};

ServedLoad ServedBy(LocalEngine& engine, const std::string& model_name) {
  ServedLoad served{.model_name = model_name};
  // GetLoads calls this before it returns, with all ranks.
  (void)engine.GetLoads(std::nullopt, [&served](absl::StatusOr<router::Loads> loads) {
    if (!loads.ok()) return;
    for (const router::RankLoad& load : loads->loads) {
      served.running += static_cast<double>(load.running_requests);
      served.waiting += static_cast<double>(load.waiting_requests);
      served.kv_used += static_cast<double>(load.used_tokens);
      served.kv_capacity += static_cast<double>(load.max_tokens);
    }
  });
  return served;
}

absl::StatusOr<std::shared_ptr<const router::ModelFiles>> LoadFiles(const std::string& directory) {
  if (directory.empty()) return nullptr;
  absl::StatusOr<router::ModelFiles> files = router::LoadModelFiles(directory);
  if (!files.ok())
    return absl::Status(files.status().code(), absl::StrCat("--tokenizer: ", files.status().message()));
  return std::make_shared<const router::ModelFiles>(*std::move(files));
}

// Returns an error if the engine cannot continue.
absl::Status ServeUntilSignal(const WorkerOptions& worker, LocalEngine& engine, Loops& loops, Front& front) {
  bool serving = false;
  while (!ShutdownSignal::WaitFor(kPoll)) {
    BFIO_RETURN_IF_ERROR(loops.status());
    BFIO_RETURN_IF_ERROR(engine.failure());
    if (serving || !engine.GetServing().ready) continue;
    serving = true;
    front.SetServing(true);
    // Scripts parse this line, as they do the router's.
    std::printf("bfio_worker: vLLM's API at %s\n", front.address().c_str());
    std::fflush(stdout);
  }
  spdlog::info("leaving: waiting up to {} for running requests", absl::FormatDuration(worker.drain_timeout));
  front.SetServing(false);
  loops.OnLeaving();
  engine.Drain();
  return AwaitDrained(
      engine, [&] { return loops.status(); }, worker.drain_timeout);
}

}  // namespace

absl::Status AwaitDrained(LocalEngine& engine, absl::FunctionRef<absl::Status()> ranks,
                          absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  for (;;) {
    const absl::Duration left = deadline - MonotonicNow();
    const bool empty = engine.EmptyWithin(std::clamp(left, absl::ZeroDuration(), kPoll));
    // A failed engine has ended its requests too.
    BFIO_RETURN_IF_ERROR(ranks());
    BFIO_RETURN_IF_ERROR(engine.failure());
    if (empty) return absl::OkStatus();
    if (left > absl::ZeroDuration()) continue;
    spdlog::warn("requests are still running after --drain_timeout; they are cancelled");
    return absl::OkStatus();
  }
}

void AddServeOptions(OptionTable& table, ServeOptions& options) {
  table.AddChoice<ServeApi>("serve", &options.api, {{"none", ServeApi::kNone}, {"vllm", ServeApi::kVllm}},
                            "none (a worker of --router) or vllm (no router: gateways call this process by "
                            "vLLM's gRPC API, and it balances requests among its ranks as vLLM does)");
  table.Add("listen", &options.listen, "with --serve: HOST:PORT of the API; port 0 picks a free port");
  table.Add("tokenizer", &options.tokenizer,
            "with --serve: directory with the model's tokenizer.json and config.json, which gateways can "
            "download; empty: none");
  table.Add(
      "served_model_name", &options.served_model_name,
      "with --serve: model name that gateways see; empty: the last part of --tokenizer or --model, or bfio");
}

absl::Status FinishServeOptions(const OptionTable& table, ServeOptions& serve, WorkerOptions& worker) {
  if (serve.api == ServeApi::kNone) {
    for (const char* flag : {"listen", "tokenizer", "served_model_name"}) {
      if (table.given(flag))
        return absl::InvalidArgumentError(absl::StrCat("--", flag, " requires --serve=vllm"));
    }
    return absl::OkStatus();
  }
  for (const char* flag : {"router", "worker_tls", "group"}) {
    if (table.given(flag))
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " cannot be combined with --serve, which runs without a router"));
  }
  if (worker.parts != nullptr)
    return absl::InvalidArgumentError(
        "--serve cannot be combined with --pipeline_listen, which needs a router");
  if (!table.given("barrier")) worker.barrier = "local";
  if (serve.served_model_name.empty())
    serve.served_model_name =
        router::ModelNameOf(serve.tokenizer.empty() ? worker.engine.model : serve.tokenizer);
  const absl::StatusOr<Address> address = ParseAddress(serve.listen, /*port_may_be_0=*/true);
  if (!address.ok())
    return absl::InvalidArgumentError(absl::StrCat("--listen: ", address.status().message()));
  if (!worker.insecure && !IsLoopback(*address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen=", serve.listen,
                     ": other machines can reach the port, and vLLM's API has neither encryption nor "
                     "authentication here: give --insecure if only the gateway can reach it"));
  }
  return absl::OkStatus();
}

absl::Status RunServing(const ServeOptions& serve, const WorkerOptions& options) {
  BFIO_RETURN_IF_ERROR(CheckWorkerOptions(options));
  BFIO_ASSIGN_OR_RETURN(auto model, LoadFiles(serve.tokenizer));
  // Declared before the process, whose metrics read it.
  LocalEngine engine({.ranks = options.ranks_per_process, .version = options.version});
  WorkerOptions worker = options;
  worker.served = [&engine, &serve] { return ServedBy(engine, serve.served_model_name); };
  BFIO_ASSIGN_OR_RETURN(auto process, WorkerProcess::Open(worker));
  BFIO_ASSIGN_OR_RETURN(auto parts, process->MakeRanks());
  // The block size that gateways see; 0, because the sim engine's pages are not a model's.
  const int32_t page_tokens = worker.engine.name == "sim" ? 0 : DecodeOptions().page_tokens;
  Front front(serve, page_tokens, engine, std::move(model));
  BFIO_RETURN_IF_ERROR(front.Open(serve.listen));
  absl::Status status;
  {
    Loops loops(std::move(parts), engine);
    status = ServeUntilSignal(worker, engine, loops, front);
    engine.Stop(
        absl::UnavailableError(status.ok() ? "the engine is shutting down" : "the engine has failed"));
    front.Close();
  }
  return status;
}

}  // namespace bfio::worker
