// The barrier within one process: ranks are threads that share a LocalHub. For tests, and for a whole group
// in a single worker process. Same semantics as the networked barriers. Threads: a LocalHub may be shared by
// any threads; endpoint and barrier as in barrier.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/barrier/barrier.h"

namespace bfio::worker {

class LocalGroup;

// Connects the ranks of a process with each other.
class LocalHub {
 public:
  std::string NewOffer();

  // The group of this communicator and epoch. Made by the first rank; destroyed when its last rank has left.
  std::shared_ptr<LocalGroup> Find(const GroupSpec& spec);

 private:
  Mutex mutex_;
  int64_t offers_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::pair<std::string, uint64_t>, std::weak_ptr<LocalGroup>> groups_
      ABSL_GUARDED_BY(mutex_);
};

class LocalBarrierEndpoint final : public BarrierEndpoint {
 public:
  explicit LocalBarrierEndpoint(std::shared_ptr<LocalHub> hub) : hub_(std::move(hub)) {}

  absl::string_view name() const override { return "local"; }
  absl::StatusOr<std::string> Offer() override { return hub_->NewOffer(); }
  absl::StatusOr<std::unique_ptr<Barrier>> Form(const GroupSpec& group, absl::Duration timeout,
                                                std::stop_token stop) override;

 private:
  std::shared_ptr<LocalHub> hub_;
};

}  // namespace bfio::worker
