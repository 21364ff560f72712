// How a caller with a clock ends a search of the core, which has none.
//
// Purpose: the shared word for solver and policies. Threads: it is called by the thread that decides.
#ifndef BFIO_ROUTER_CORE_MODEL_STOP_SIGNAL_H_
#define BFIO_ROUTER_CORE_MODEL_STOP_SIGNAL_H_

#include <functional>

namespace bfio::core {

// True when the search should end with the plan at hand. May be empty: never.
using StopSignal = std::function<bool()>;

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_MODEL_STOP_SIGNAL_H_
