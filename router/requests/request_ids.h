// Ids of requests: never used twice in the router's life, nor while another router's may still be around.
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

  // Where no ids of a router are that started before this moment: workers may still hold its requests.
  // SkipPast sees to it that they do not meet when this machine's clock was set back.
  static core::RequestId FirstAt(absl::Time wall_clock) {
    return static_cast<core::RequestId>(absl::ToUnixMillis(wall_clock)) << 20;
  }

  core::RequestId Next() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Later ids are larger than `id`, and none that the router which gave it out may have given out besides.
  void SkipPast(core::RequestId id) {
    core::RequestId next = next_.load();
    while (next <= id && !next_.compare_exchange_weak(next, id + kIdsOfALife)) {
    }
  }

 private:
  // More than any router gives out.
  static constexpr core::RequestId kIdsOfALife = core::RequestId{1} << 40;

  std::atomic<core::RequestId> next_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REQUEST_IDS_H_
