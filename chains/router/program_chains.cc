// Adds the options of chains, and the pool of servers as a service of the router.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "bfio/v1/pipeline.pb.h"
#include "chains/core/pool_plan.h"
#include "chains/core/server_pool.h"
#include "chains/router/chain_options.h"
#include "chains/router/chain_pool.h"
#include "common/base/atomic_file.h"
#include "common/base/clock.h"
#include "common/base/event_queue.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"
#include "common/net/status.h"
#include "common/net/tls.h"
#include "nlohmann/json.hpp"
#include "router/app/program_chains.h"
#include "router/worker_link/worker_port_service.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

// The ChainPool service: the pool's streams, and the one thread that owns the pool. Threads: Join runs on
// gRPC's threads; everything else is posted to the pool's thread, which also writes the pool's files. Call
// Stop once, before the server is shut down. Must outlive the server.

// The router's end of a server's stream to the pool: ChainPool.Join.
using PoolSession = MessageSession<v1::ServerMessage, v1::PoolMessage>;

// {"servers": [{"name", "memory_gb", "block_ms", "communication_ms"}, ...]}, with the times of a mean
// request.
std::string PoolJson(absl::Span<const core::PoolServer> servers);
// {"blocks", "block_gb", "cache_gb"}, with the cache of one request.
std::string ModelJson(const core::BlockSizes& sizes);

// The pool as the router has measured it, for bfio_plan: what moving blocks or adding a server would gain.
// Writes FOLDER/pool.json and FOLDER/model.json, each atomically; creates the folder. An error names the
// file.
absl::Status WritePoolFiles(const std::string& folder, absl::Span<const core::PoolServer> servers,
                            const core::BlockSizes& sizes);

class ChainPool;

class ChainPoolService final : public WorkerPortService {
 public:
  ChainPoolService(const ChainOptions& options, WorkerPortSetup setup);
  ~ChainPoolService() override;

  void Stop() override;

 private:
  CallReactor* Join(grpc::CallbackServerContext* context);
  using Session = PoolSession;

  void Run();
  void OnMessage(const std::shared_ptr<Session>& session, const v1::ServerMessage& message);
  void OnGone(const std::shared_ptr<Session>& session);

  const ChainOptions options_;
  const WorkerPortSetup setup_;
  EventQueue events_;

  // --- used by the pool's thread ---
  const std::unique_ptr<ChainPool> pool_;
  std::map<Session*, uint64_t> numbers_;
  std::map<uint64_t, std::shared_ptr<Session>> sessions_;
  uint64_t next_session_ = 1;
  std::thread thread_;
};

// Chains are numbered from the current time in microseconds, which grows faster than chains are composed, so
// a later router's chains have larger numbers.
ChainPoolService::ChainPoolService(const ChainOptions& options, WorkerPortSetup setup)
    : options_(options),
      setup_(std::move(setup)),
      pool_(std::make_unique<ChainPool>(options, static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())))),
      thread_([this] { Run(); }) {
  Add("/bfio.v1.ChainPool/Join", [this](grpc::CallbackServerContext* context) { return Join(context); });
}

ChainPoolService::~ChainPoolService() {
  Stop();
}

void ChainPoolService::Stop() {
  events_.Close();
  if (thread_.joinable()) thread_.join();
}

CallReactor* ChainPoolService::Join(grpc::CallbackServerContext* context) {
  if (setup_.authenticator != nullptr) setup_.authenticator->Accepted(*context);
  Session::Callbacks callbacks;
  std::optional<std::vector<std::string>> names;
  if (setup_.bind_worker_id) names = PeerNames(*context->auth_context());
  callbacks.on_message = [this, names = std::move(names)](std::shared_ptr<Session> session,
                                                          v1::ServerMessage message) {
    if (options_.servers == 0) {
      session->Close({grpc::StatusCode::FAILED_PRECONDITION,
                      "chains are disabled on this router; start it with --chains=servers=N"});
      return session->Consumed();
    }
    if (names.has_value() && message.has_hello() && !NamesWorker(*names, message.hello().server_id())) {
      session->Close({grpc::StatusCode::PERMISSION_DENIED, "the certificate does not name this server_id"});
      return session->Consumed();
    }
    const bool posted = events_.Post([this, session, message = std::move(message)] {
      OnMessage(session, message);
      session->Consumed();
    });
    if (!posted) session->Close({grpc::StatusCode::UNAVAILABLE, "the router is shutting down"});
  };
  callbacks.on_gone = [this](std::shared_ptr<Session> session) {
    events_.Post([this, session] { OnGone(session); });
  };
  return Session::Create(context->peer(), std::move(callbacks), &bounds_, context).get();
}

void ChainPoolService::OnMessage(const std::shared_ptr<Session>& session, const v1::ServerMessage& message) {
  auto [number, fresh] = numbers_.try_emplace(session.get(), next_session_);
  if (fresh) sessions_[next_session_++] = session;
  const absl::Status status = pool_->OnMessage(number->second, message, MonotonicNow());
  if (!status.ok()) session->Close(ToGrpcStatus(status));
  for (const ChainPool::Session other : pool_->TakePutOut()) {
    if (const auto found = sessions_.find(other); found != sessions_.end()) {
      found->second->Close(
          {grpc::StatusCode::FAILED_PRECONDITION,
           "the pool now serves a different model, that of a server that already had chains"});
    }
  }
}

void ChainPoolService::OnGone(const std::shared_ptr<Session>& session) {
  const auto found = numbers_.find(session.get());
  if (found == numbers_.end()) return;
  pool_->OnGone(found->second, MonotonicNow());
  sessions_.erase(found->second);
  numbers_.erase(found);
}

void ChainPoolService::Run() {
  std::vector<EventQueue::Event> events;
  while (!events_.closed()) {
    const absl::Duration look = sessions_.empty() ? absl::InfiniteDuration() : kSessionCheck;
    events_.WaitAndTake(std::clamp(pool_->NextTimer() - MonotonicNow(), absl::ZeroDuration(), look), events);
    for (EventQueue::Event& event : events) std::move(event)();
    pool_->OnTime(MonotonicNow());
    if (const auto composed = pool_->TakeComposed(); composed && !options_.plan_folder.empty()) {
      const absl::Status status = WritePoolFiles(options_.plan_folder, composed->servers, composed->sizes);
      if (!status.ok()) spdlog::warn("plan of --chains: {}", std::string(status.message()));
    }
    const absl::Time now = MonotonicNow();
    for (const auto& [number, session] : sessions_) {
      if (session->BreakOffIfStuck(now, options_.step_timeout))
        spdlog::warn("the server at {} does not read its messages; disconnecting it", session->peer());
    }
    for (ChainPool::Outgoing& out : pool_->TakeOutgoing()) {
      if (const auto to = sessions_.find(out.to); to != sessions_.end()) {
        to->second->Send(std::move(out.message));
      }
    }
  }
  for (const auto& [number, session] : sessions_) {
    session->Close({grpc::StatusCode::UNAVAILABLE, "the router is shutting down"});
  }
}

std::string PoolJson(absl::Span<const core::PoolServer> servers) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const core::PoolServer& server : servers) {
    list.push_back({{"name", server.name},
                    {"memory_gb", static_cast<double>(server.memory) * 1e-9},
                    {"block_ms", server.times.compute * 1e3},
                    {"communication_ms", server.times.communication * 1e3}});
  }
  return JsonText(nlohmann::ordered_json{{"servers", std::move(list)}}, 2);
}

std::string ModelJson(const core::BlockSizes& sizes) {
  return JsonText(nlohmann::ordered_json{{"blocks", sizes.blocks},
                                         {"block_gb", static_cast<double>(sizes.block) * 1e-9},
                                         {"cache_gb", static_cast<double>(sizes.request) * 1e-9}},
                  2);
}

absl::Status WritePoolFiles(const std::string& folder, absl::Span<const core::PoolServer> servers,
                            const core::BlockSizes& sizes) {
  const std::filesystem::path path(folder);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot create directory ", folder, ": ", error.message()));
  absl::Status status = WriteFileAtomically((path / "model.json").string(), ModelJson(sizes) + "\n");
  if (!status.ok()) return status;
  return WriteFileAtomically((path / "pool.json").string(), PoolJson(servers) + "\n");
}

namespace {

using core::JobShape;

absl::StatusOr<JobShape> ParseJob(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  int64_t tokens[2] = {};
  bool good = parts.size() == 2;
  for (size_t i = 0; good && i < 2; ++i)
    good = absl::SimpleAtoi(parts[i], &tokens[i]) && tokens[i] >= 1 && tokens[i] <= 1 << 24;
  if (!good)
    return absl::InvalidArgumentError("must be INPUT:OUTPUT, each a number of tokens within 1..16777216");
  return JobShape{static_cast<double>(tokens[0]), static_cast<double>(tokens[1])};
}

}  // namespace

SetChains AddChainOptions(OptionTable& table) {
  const auto chains = std::make_shared<ChainOptions>();
  const auto items = std::make_shared<OptionTable>();
  items->Add("servers", &chains->servers, Within(0, core::kMostServers), "");
  items->Add("slots", &chains->slots, Within(1, 4096), "");
  items->Add("sequence_tokens", &chains->sequence_tokens, Within(2, 1 << 24), "");
  items->AddParsed("job", &chains->job, "512:128", "", ParseJob);
  items->Add("measure", &chains->use_times, "");
  items->Add("plan", &chains->plan_folder, "");
  table.AddParsed(
      "chains", chains.get(), "servers=0",
      "chains of servers that hold parts of a model, as servers=4,slots=8: servers is the number of servers "
      "(bfio_worker --pipeline_listen) that must join before the router composes the first chains (0: no "
      "chains). slots (8): concurrent requests per chain for which the servers reserve KV cache, lowered if "
      "their memory does not suffice. sequence_tokens (2048): largest prompt + output of a request, for "
      "which a slot reserves KV cache. job (512:128): prompt and generated tokens of a mean request, used to "
      "compose chains of servers that differ in speed. measure (true): false, all servers count as equally "
      "fast. plan: directory for pool.json and model.json with the measured servers, as input of "
      "bfio_plan, rewritten whenever chains are composed",
      [items, chains](const std::string& text) -> absl::StatusOr<ChainOptions> {
        BFIO_RETURN_IF_ERROR(items->ReadItems(text));
        return *chains;
      });
  return [chains](RouterOptions& options) {
    chains->step_timeout = options.step_timeout;
    if (chains->servers > 0) options.group_kind = core::GroupKind::kIndependent;
    // Registered even without servers, so that a server that joins gets an error with the missing flag.
    options.worker_port_service = [chains](WorkerPortSetup setup) {
      return std::make_unique<ChainPoolService>(*chains, std::move(setup));
    };
  };
}

}  // namespace bfio::router
