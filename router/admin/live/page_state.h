// What the live page shows of a cluster's state, as JSON.
//
// Purpose: protobuf's own JSON of a ClusterState with hundreds of workers takes tens of milliseconds of a
// core, every two seconds for every page; this is the part that the page reads, in a fraction of that. Names
// are those of protobuf's JSON
// (/api/state); numbers are numbers. Pure.
#ifndef BFIO_ROUTER_ADMIN_LIVE_PAGE_STATE_H_
#define BFIO_ROUTER_ADMIN_LIVE_PAGE_STATE_H_

#include <string>

#include "bfio/v1/admin.pb.h"

namespace bfio::router {

std::string PageStateJson(const v1::ClusterState& state);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_LIVE_PAGE_STATE_H_
