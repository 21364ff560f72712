// How a router's life is named on the worker link (Epoch.router_instance, Hello.router_instance).
//
// Purpose: a worker that has followed an elected router follows none that was elected before it. Pure.
#ifndef BFIO_COMMON_BASE_ROUTER_INSTANCE_H_
#define BFIO_COMMON_BASE_ROUTER_INSTANCE_H_

#include <cstdint>

namespace bfio {

// 0 is no router, kElected + term an elected one (router/election/election.h), what is below one that nobody
// elected: nanoseconds of its start.
inline constexpr uint64_t kElected = uint64_t{1} << 63;

// Whether who has followed `known` may follow `next`. Routers that nobody elected have no order: clocks jump.
constexpr bool MayFollow(uint64_t known, uint64_t next) {
  return known < kElected || next >= known;
}

}  // namespace bfio

#endif  // BFIO_COMMON_BASE_ROUTER_INSTANCE_H_
