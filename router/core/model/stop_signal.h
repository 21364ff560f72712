// How a caller ends a search of the core, which cannot read a clock. Shared by solver and policies. Threads:
// called by the deciding thread.
#pragma once

#include <functional>

namespace bfio::core {

// True when the search should end and return its best plan so far. Empty: never.
using StopSignal = std::function<bool()>;

}  // namespace bfio::core
