// The ChainPool service: the pool's streams, and the one thread that owns the pool.
//
// Threads: Join is gRPC's; everything that happens is posted to the pool's thread. Stop, once, before the
// server is shut down; must outlive the server. The pool's files are written by the pool's thread.
#ifndef BFIO_ROUTER_CHAINS_CHAIN_SERVICE_H_
#define BFIO_ROUTER_CHAINS_CHAIN_SERVICE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "bfio/v1/pipeline.pb.h"
#include "common/base/event_queue.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "router/chains/chain_options.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

class ChainPool;

class ChainPoolService final : public CallService {
 public:
  // With `bind_worker_id` a server may only have the name that its certificate has.
  // `demand`: requests per second that come; called on the pool's thread.
  // `authenticator` is told of callers; null: nobody is.
  ChainPoolService(const ChainOptions& options, bool bind_worker_id, std::function<double()> demand,
                   Authenticator* authenticator = nullptr);
  ~ChainPoolService() override;

  void Stop();

  FirstMessages::Counts messages() const { return bounds_.first_messages.counts(); }
  // Streams now.
  int64_t sessions() const { return bounds_.open.load(std::memory_order_relaxed); }
  // Of messages that the pool's thread has not taken, encoded.
  int64_t unconsumed_bytes() const { return bounds_.unconsumed_bytes.load(std::memory_order_relaxed); }
  // Of messages to servers that wait to be written, encoded.
  int64_t queued_bytes() const { return bounds_.queued_bytes.load(std::memory_order_relaxed); }

 private:
  grpc::ServerBidiReactor<v1::ServerMessage, v1::PoolMessage>* Join(grpc::CallbackServerContext* context);
  using Session = MessageSession<v1::ServerMessage, v1::PoolMessage>;

  void Run();
  void OnMessage(const std::shared_ptr<Session>& session, const v1::ServerMessage& message);
  void OnGone(const std::shared_ptr<Session>& session);

  const ChainOptions options_;
  const bool bind_worker_id_;
  const std::function<double()> demand_;
  Authenticator* const authenticator_;
  SessionBounds bounds_;
  EventQueue events_;

  // --- of the pool's thread ---
  const std::unique_ptr<ChainPool> pool_;
  std::map<Session*, uint64_t> numbers_;
  std::map<uint64_t, std::shared_ptr<Session>> sessions_;
  uint64_t next_session_ = 1;
  std::thread thread_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_CHAINS_CHAIN_SERVICE_H_
