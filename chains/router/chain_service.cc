#include "chains/router/chain_service.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "chains/router/chain_pool.h"
#include "common/base/atomic_file.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"
#include "common/net/status.h"
#include "common/net/tls.h"
#include "nlohmann/json.hpp"
#include "router/worker_link/worker_session.h"

namespace bfio::router {
// Chains are numbered from the current time in microseconds, which grows faster than chains are composed, so
// a later router's chains have larger numbers.
ChainPoolService::ChainPoolService(const ChainOptions& options, WorkerPortSetup setup)
    : options_(options),
      setup_(std::move(setup)),
      pool_(std::make_unique<ChainPool>(options, static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())))),
      thread_([this] { Run(); }) {
  Add<v1::PoolMessage>("/bfio.v1.ChainPool/Join",
                       [this](grpc::CallbackServerContext* context) { return Join(context); });
}

ChainPoolService::~ChainPoolService() {
  Stop();
}

void ChainPoolService::Stop() {
  events_.Close();
  if (thread_.joinable()) thread_.join();
}

CallReactor<v1::PoolMessage>* ChainPoolService::Join(grpc::CallbackServerContext* context) {
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
    pool_->OnTime(MonotonicNow(), setup_.demand());
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
  // Servers choose their names; invalid UTF-8 is replaced.
  return nlohmann::ordered_json{{"servers", std::move(list)}}.dump(
      2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string ModelJson(const core::BlockSizes& sizes) {
  return nlohmann::ordered_json{{"blocks", sizes.blocks},
                                {"block_gb", static_cast<double>(sizes.block) * 1e-9},
                                {"cache_gb", static_cast<double>(sizes.request) * 1e-9}}
      .dump(2);
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

}  // namespace bfio::router
