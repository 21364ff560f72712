// The flags of a router that others stand by for, or that stands by for another.
#ifndef BFIO_ROUTER_SERVICE_ELECTION_FLAGS_H_
#define BFIO_ROUTER_SERVICE_ELECTION_FLAGS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "router/election/election.h"

namespace bfio::router {

// Null without --election_etcd. INVALID_ARGUMENT, naming the flag, when one is out of range. `name`: what
// standbys say of this router.
absl::StatusOr<std::unique_ptr<Election>> ElectionFromFlags(const std::string& name);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_SERVICE_ELECTION_FLAGS_H_
