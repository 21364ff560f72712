// The flags of a router that others stand by for, or that stands by for another.
#ifndef BFIO_ROUTER_APP_ELECTION_FLAGS_H_
#define BFIO_ROUTER_APP_ELECTION_FLAGS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "router/election/election.h"

namespace bfio::router {

// Null without --election_etcd. INVALID_ARGUMENT, naming the flag, when one is out of range. `listen`: the
// client API's HOST:PORT, the router's name in the election if it is given none.
absl::StatusOr<std::unique_ptr<Election>> ElectionFromFlags(const std::string& listen);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_ELECTION_FLAGS_H_
