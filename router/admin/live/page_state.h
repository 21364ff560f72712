// The part of a cluster's state that the live page shows, as JSON.
//
// Purpose: every open page requests the state every two seconds. Protobuf's JSON of a ClusterState with
// hundreds of workers takes tens of milliseconds of CPU time; this subset takes a fraction of that. Names are
// those of protobuf's JSON (/api/state); numbers are JSON numbers. Pure.
#ifndef BFIO_ROUTER_ADMIN_LIVE_PAGE_STATE_H_
#define BFIO_ROUTER_ADMIN_LIVE_PAGE_STATE_H_

#include <string>

#include "bfio/v1/admin.pb.h"

namespace bfio::router {

std::string PageStateJson(const v1::ClusterState& state);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_LIVE_PAGE_STATE_H_
