// The pool as the router has measured it, in files that bfio_plan reads.
//
// Purpose: what a move of blocks would bring, or another server, is the planner's to say; it gets the
// figures that the router composes with. Threads: any, no state.
#ifndef BFIO_CHAINS_ROUTER_POOL_FILES_H_
#define BFIO_CHAINS_ROUTER_POOL_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "chains/router/compose_chains.h"

namespace bfio::router {

// {"servers": [{"name", "memory_gb", "block_ms", "communication_ms"}, ...]}, times of a mean request.
std::string PoolJson(absl::Span<const PoolServer> servers);
// {"blocks", "block_gb", "cache_gb"}, the cache of one request.
std::string ModelJson(const BlockSizes& sizes);

// FOLDER/pool.json and FOLDER/model.json, each whole or not at all; makes the folder. An error names the
// file.
absl::Status WritePoolFiles(const std::string& folder, absl::Span<const PoolServer> servers,
                            const BlockSizes& sizes);

}  // namespace bfio::router

#endif  // BFIO_CHAINS_ROUTER_POOL_FILES_H_
