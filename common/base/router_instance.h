// Identifier of a router process on the worker link (Epoch.router_instance, Hello.router_instance). A worker
// that has followed an elected router rejects routers that were elected earlier. Pure.
#pragma once

#include <cstdint>

namespace bfio {

// 0: no router. kElected + term: an elected router (router/election/election.h). Smaller values: routers
// without election, with the nanoseconds of their start.
inline constexpr uint64_t kElected = uint64_t{1} << 63;

// Whether a worker that has followed `known` may follow `next`. Routers without election are not ordered,
// because clocks jump.
constexpr bool MayFollow(uint64_t known, uint64_t next) {
  return known < kElected || next >= known;
}

}  // namespace bfio
