// The flags that say how the router's ports are protected.
#ifndef BFIO_ROUTER_APP_SECURITY_FLAGS_H_
#define BFIO_ROUTER_APP_SECURITY_FLAGS_H_

#include "router/app/options.h"

namespace bfio::router {

// Copies the flags' values; CheckPorts judges them.
void ReadSecurityFlags(RouterOptions& options);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_SECURITY_FLAGS_H_
