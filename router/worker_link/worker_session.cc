#include "router/worker_link/worker_session_impl.h"

namespace bfio::router {

template class MessageSession<v1::WorkerMessage, v1::RouterMessage>;

}  // namespace bfio::router
