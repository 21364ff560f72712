// The ChainPool service: the pool's streams, and the one thread that owns the pool. Threads: Join runs on
// gRPC's threads; everything else is posted to the pool's thread, which also writes the pool's files. Call
// Stop once, before the server is shut down. Must outlive the server.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "bfio/v1/pipeline.pb.h"
#include "chains/core/pool_plan.h"
#include "chains/router/chain_options.h"
#include "common/base/event_queue.h"
#include "router/worker_link/worker_port_service.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

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
  // `setup.demand` is called on the pool's thread.
  ChainPoolService(const ChainOptions& options, WorkerPortSetup setup);
  ~ChainPoolService() override;

  void Stop() override;

 private:
  CallReactor<v1::PoolMessage>* Join(grpc::CallbackServerContext* context);
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

}  // namespace bfio::router
