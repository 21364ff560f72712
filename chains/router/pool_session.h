// The router's end of a server's stream to the pool: ChainPool.Join.
#ifndef BFIO_CHAINS_ROUTER_POOL_SESSION_H_
#define BFIO_CHAINS_ROUTER_POOL_SESSION_H_

#include "bfio/v1/pipeline.pb.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

using PoolSession = MessageSession<v1::ServerMessage, v1::PoolMessage>;
extern template class MessageSession<v1::ServerMessage, v1::PoolMessage>;

}  // namespace bfio::router

#endif  // BFIO_CHAINS_ROUTER_POOL_SESSION_H_
