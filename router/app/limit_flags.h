// The flags that say how much the router keeps, of whom, and for how long.
#ifndef BFIO_ROUTER_APP_LIMIT_FLAGS_H_
#define BFIO_ROUTER_APP_LIMIT_FLAGS_H_

#include "absl/status/status.h"
#include "router/app/options.h"

namespace bfio::router {

// INVALID_ARGUMENT, naming the flag, when one is out of range.
absl::Status ReadLimitFlags(RouterOptions& options);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_LIMIT_FLAGS_H_
