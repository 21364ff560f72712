#include "chains/router/pool_session.h"

#include "router/worker_link/worker_session_impl.h"

namespace bfio::router {

template class MessageSession<v1::ServerMessage, v1::PoolMessage>;

}  // namespace bfio::router
