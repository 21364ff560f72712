// A worker as its group keeps it.
//
// Purpose: the record that Group and its two kinds share; no other code sees it (MemberView is for
// operators). Threads: the group's.
#ifndef BFIO_ROUTER_GROUP_MEMBER_H_
#define BFIO_ROUTER_GROUP_MEMBER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "router/core/model/request.h"
#include "router/group/worker_messages.h"
#include "router/group/worker_telemetry.h"

namespace bfio::router {

struct Member {
  MemberId id = 0;
  WorkerHello hello;
  // Order of arrival; ranks follow it, so those that stay keep theirs in order.
  uint64_t sequence = 0;
  // Takes no new requests and leaves when it has none.
  bool draining = false;
  // It asked to drain itself, and will end whatever the router says.
  bool leaving = false;
  WorkerTelemetry telemetry;

  // --- epochs ---

  // Its rank in the last epoch that opened with it, and that epoch.
  std::optional<core::WorkerIndex> rank;
  uint64_t rank_epoch = 0;
  // The last epoch that it said it was ready for.
  uint64_t spoken_epoch = 0;
  // Rank in the epoch being formed.
  core::WorkerIndex next_rank = 0;
  // It has answered the EpochOffer; with success.
  bool answered = false;
  bool ready = false;
  std::string offer;
  // What it said it holds when it was ready.
  std::vector<HeldActive> active;

  // --- requests of an earlier router ---

  // It holds some, which it announces before it is ready; until an epoch has opened with it.
  bool recovering = false;
  std::vector<HeldRequest> announced;
  int64_t announced_bytes = 0;
  // Those that it holds without a waiting client: never taken for requests of this router, whatever their
  // ids.
  std::vector<core::RequestId> orphaned;
  // A plan of this epoch has dropped them.
  bool orphans_dropped = false;

  // --- progress ---

  // Its newest report in the present epoch.
  int64_t reported_step = 0;
  // Since when a report of it is owed: with a barrier since others have been further, without one since its
  // last plan or report.
  absl::Time behind_since = absl::InfiniteFuture();
  // Without a barrier: the longest that a report was owed; 0 before the first.
  absl::Duration longest_step;
  // With a barrier: it waited for others in vain; others waited for it.
  bool blames = false;
  bool blamed = false;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_MEMBER_H_
