// The star barrier's endpoint: one listener for the rank's life, one StarBarrier per epoch.
#ifndef BFIO_WORKER_BARRIER_STAR_STAR_ENDPOINT_H_
#define BFIO_WORKER_BARRIER_STAR_STAR_ENDPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/star/socket.h"

namespace bfio::worker {

struct StarOptions {
  // Where this rank listens, as its peers reach it.
  std::string host = "127.0.0.1";
  // Children per rank, at least 1; up to fan_out + 1 ranks meet in a star, more in a tree. All ranks must
  // agree. On 2 cores 4, 8 and 16 are within noise of each other up to 64 ranks (bfio_barrier_bench).
  int32_t fan_out = 16;
  // Encrypts what ranks exchange. The endpoint's name is "star_tls" then, so that the router puts no others
  // into the group.
  bool tls = false;
  // A connection that does not prove itself in this time is dropped.
  absl::Duration handshake_timeout = absl::Seconds(3);
};

class StarEndpoint final : public BarrierEndpoint {
 public:
  // UNAVAILABLE when it cannot listen.
  static absl::StatusOr<std::unique_ptr<StarEndpoint>> Create(const StarOptions& options);

  absl::string_view name() const override { return options_.tls ? "star_tls" : "star"; }
  // Where it listens, and a fresh random secret (join_proof.h). Keep it out of logs.
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

#endif  // BFIO_WORKER_BARRIER_STAR_STAR_ENDPOINT_H_
