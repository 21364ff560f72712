// Tenants' names as small numbers, for the core.
//
// Purpose: whatever names clients think up, the core sees a bounded number of tenants: the first `limit`
// names have numbers of their own for the router's life, all later ones share one. Owned by the decision
// thread; not thread-safe.
#ifndef BFIO_ROUTER_REQUESTS_TENANTS_H_
#define BFIO_ROUTER_REQUESTS_TENANTS_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace bfio::router {

class Tenants {
 public:
  static constexpr uint32_t kDefaultLimit = 1024;

  explicit Tenants(uint32_t limit = kDefaultLimit) : limit_(limit) {}

  // 0 for the default tenant "", 1 .. limit for the first names, limit + 1 for the others.
  uint32_t Number(const std::string& name) {
    if (name.empty()) return 0;
    const auto it = numbers_.find(name);
    if (it != numbers_.end()) return it->second;
    const uint32_t next = static_cast<uint32_t>(numbers_.size()) + 1;
    if (next <= limit_) numbers_.emplace(name, next);
    return next;
  }

 private:
  uint32_t limit_;
  absl::flat_hash_map<std::string, uint32_t> numbers_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_TENANTS_H_
