// Request ids that are unique while the router runs, and differ from those that another router may still use.
//
// Threads: any.
#ifndef BFIO_ROUTER_REQUESTS_REQUEST_IDS_H_
#define BFIO_ROUTER_REQUESTS_REQUEST_IDS_H_

#include <atomic>

#include "absl/time/time.h"
#include "router/core/model/request.h"

namespace bfio::router {

class RequestIds {
 public:
  explicit RequestIds(core::RequestId first) : next_(first) {}

  // A first id above all ids of routers that started before this moment, since workers may still hold their
  // requests. SkipPast keeps ids unique when this machine's clock was set back.
  static core::RequestId FirstAt(absl::Time wall_clock) {
    return static_cast<core::RequestId>(absl::ToUnixMillis(wall_clock)) << 20;
  }

  core::RequestId Next() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Makes all later ids larger than `id`, and larger than any other id that the same router can have
  // assigned.
  void SkipPast(core::RequestId id) {
    core::RequestId next = next_.load();
    while (next <= id && !next_.compare_exchange_weak(next, id + kIdsOfALife)) {
    }
  }

 private:
  // More ids than any router assigns.
  static constexpr core::RequestId kIdsOfALife = core::RequestId{1} << 40;

  std::atomic<core::RequestId> next_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REQUEST_IDS_H_
