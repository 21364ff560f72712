// The ChainPool service: the pool's streams, and the one thread that owns the pool.
//
// Threads: Join runs on gRPC's threads; everything else is posted to the pool's thread, which also writes the
// pool's files. Call Stop once, before the server is shut down. Must outlive the server.
#ifndef BFIO_CHAINS_ROUTER_CHAIN_SERVICE_H_
#define BFIO_CHAINS_ROUTER_CHAIN_SERVICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <thread>

#include "bfio/v1/pipeline.pb.h"
#include "chains/router/chain_options.h"
#include "chains/router/pool_session.h"
#include "common/base/event_queue.h"
#include "router/worker_link/worker_port_service.h"

namespace bfio::router {

class ChainPool;

class ChainPoolService final : public WorkerPortService {
 public:
  // `setup.demand` is called on the pool's thread.
  ChainPoolService(const ChainOptions& options, WorkerPortSetup setup);
  ~ChainPoolService() override;

  void Stop() override;

  FirstMessages::Counts messages() const override { return bounds_.first_messages.counts(); }
  int64_t sessions() const override { return bounds_.open.load(std::memory_order_relaxed); }
  int64_t unconsumed_bytes() const override {
    return bounds_.unconsumed_bytes.load(std::memory_order_relaxed);
  }
  int64_t queued_bytes() const override { return bounds_.queued_bytes.load(std::memory_order_relaxed); }

 private:
  grpc::ServerBidiReactor<v1::ServerMessage, v1::PoolMessage>* Join(grpc::CallbackServerContext* context);
  using Session = PoolSession;

  void Run();
  void OnMessage(const std::shared_ptr<Session>& session, const v1::ServerMessage& message);
  void OnGone(const std::shared_ptr<Session>& session);

  const ChainOptions options_;
  const WorkerPortSetup setup_;
  SessionBounds bounds_;
  EventQueue events_;

  // --- used by the pool's thread ---
  const std::unique_ptr<ChainPool> pool_;
  std::map<Session*, uint64_t> numbers_;
  std::map<uint64_t, std::shared_ptr<Session>> sessions_;
  uint64_t next_session_ = 1;
  std::thread thread_;
};

}  // namespace bfio::router

#endif  // BFIO_CHAINS_ROUTER_CHAIN_SERVICE_H_
