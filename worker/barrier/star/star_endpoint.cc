#include "worker/barrier/star/star_endpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/annotated.h"
#include "common/base/status_macros.h"
#include "worker/barrier/star/rendezvous.h"
#include "worker/barrier/star/star_barrier.h"

namespace bfio::worker {

StarEndpoint::StarEndpoint(const StarOptions& options, Fd listener, Address address)
    : options_(options), listener_(std::move(listener)), address_(std::move(address)) {}

absl::StatusOr<std::unique_ptr<StarEndpoint>> StarEndpoint::Create(const StarOptions& options) {
  if (options.fan_out < 1) return absl::InvalidArgumentError("fan_out must be at least 1");
  if (options.host.empty() || options.host.size() > kMaxHostBytes) {
    return absl::InvalidArgumentError("the barrier's host must have 1 to 253 characters");
  }
  Address address{options.host, 0};
  BFIO_ASSIGN_OR_RETURN(auto listener,
                        Annotated(absl::StrCat("the barrier cannot listen on '", options.host, "'"),
                                  Listen(options.host, &address.port)));
  return std::unique_ptr<StarEndpoint>(new StarEndpoint(options, std::move(listener), std::move(address)));
}

absl::StatusOr<std::string> StarEndpoint::Offer() {
  StarId id{address_, {}};
  BFIO_RETURN_IF_ERROR(FillRandom(absl::MakeSpan(id.secret)));
  return FormatStarId(id);
}

absl::StatusOr<std::unique_ptr<Barrier>> StarEndpoint::Form(const GroupSpec& group, absl::Duration timeout,
                                                            std::stop_token stop) {
  BFIO_RETURN_IF_ERROR(CheckGroup(group));
  absl::StatusOr<StarId> id = StarId();
  if (group.world_size > 1) id = ParseStarId(group.communicator_id);
  if (!id.ok()) return id.status();
  auto interrupt = std::make_shared<Signal>();
  std::stop_callback on_stop(stop, [&] { interrupt->Set(); });
  const int64_t deadline_ns = MonotonicNs() + absl::ToInt64Nanoseconds(timeout);
  BFIO_ASSIGN_OR_RETURN(auto links,
                        Rendezvous({group, *id, options_.fan_out, options_.tls, listener_, address_,
                                    options_.handshake_timeout, *interrupt, deadline_ns}));
  const RankRange children = ChildrenOf(group.rank, options_.fan_out, group.world_size);
  const int32_t parent = group.rank == 0 ? -1 : ParentOf(group.rank, options_.fan_out);
  auto barrier =
      std::make_unique<StarBarrier>(group, StarRanks{parent, children.begin}, std::move(links), interrupt);
  // A first all-reduce, so that success means that the whole group has formed, not only this rank's
  // neighbours.
  const auto formed = barrier->AllReduce(0, {}, absl::Nanoseconds(deadline_ns - MonotonicNs()));
  if (!formed.ok()) return formed.status();
  return barrier;
}

}  // namespace bfio::worker
