// The star barrier's endpoint: one listener for the rank's lifetime, one StarBarrier per epoch. Threads: as
// barrier.h describes.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/star/socket.h"

namespace bfio::worker {

struct StarOptions {
  // Address at which this rank listens, as its peers reach it.
  std::string host = "127.0.0.1";
  // Children per rank, at least 1. Up to fan_out + 1 ranks form a star, more a tree. Must be equal on all
  // ranks. On 2 cores the times with 4, 8 and 16 do not differ beyond noise up to 64 ranks
  // (bfio_barrier_bench).
  int32_t fan_out = 16;
  // Encrypts what ranks exchange. The endpoint's name is then "star_tls", so that the router groups it only
  // with ranks that encrypt too.
  bool tls = false;
  // Time within which a connection must authenticate; it is dropped otherwise.
  absl::Duration handshake_timeout = absl::Seconds(3);
};

class StarEndpoint final : public BarrierEndpoint {
 public:
  // UNAVAILABLE when it cannot listen.
  static absl::StatusOr<std::unique_ptr<StarEndpoint>> Create(const StarOptions& options);

  absl::string_view name() const override { return options_.tls ? "star_tls" : "star"; }
  // Its address and a new random secret (join_proof.h). Must not be logged.
  absl::StatusOr<std::string> Offer() override;
  absl::StatusOr<std::unique_ptr<Barrier>> Form(const GroupSpec& group, absl::Duration timeout,
                                                std::stop_token stop) override;

 private:
  StarEndpoint(const StarOptions& options, Fd listener, Address address);

  const StarOptions options_;
  const Fd listener_;
  const Address address_;
};

}  // namespace bfio::worker
