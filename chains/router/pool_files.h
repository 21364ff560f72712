// Writes the pool as the router has measured it to files that bfio_plan reads.
//
// Purpose: the planner can compute what moving blocks or adding a server would gain, from the same data with
// which the router composes. Threads: any, no state.
#ifndef BFIO_CHAINS_ROUTER_POOL_FILES_H_
#define BFIO_CHAINS_ROUTER_POOL_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "chains/core/pool_plan.h"

namespace bfio::router {

// {"servers": [{"name", "memory_gb", "block_ms", "communication_ms"}, ...]}, with the times of a mean
// request.
std::string PoolJson(absl::Span<const core::PoolServer> servers);
// {"blocks", "block_gb", "cache_gb"}, with the cache of one request.
std::string ModelJson(const core::BlockSizes& sizes);

// Writes FOLDER/pool.json and FOLDER/model.json, each atomically; creates the folder. An error names the
// file.
absl::Status WritePoolFiles(const std::string& folder, absl::Span<const core::PoolServer> servers,
                            const core::BlockSizes& sizes);

}  // namespace bfio::router

#endif  // BFIO_CHAINS_ROUTER_POOL_FILES_H_
