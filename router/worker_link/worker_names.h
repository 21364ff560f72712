// Matches a worker_id with the names in a certificate. Pure.
#ifndef BFIO_ROUTER_WORKER_LINK_WORKER_NAMES_H_
#define BFIO_ROUTER_WORKER_LINK_WORKER_NAMES_H_

#include <algorithm>
#include <string>
#include <vector>

namespace bfio::router {

// True when one of the names is this worker's; ranks of one process are NAME#0, NAME#1, ...
inline bool NamesWorker(const std::vector<std::string>& names, const std::string& worker_id) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return worker_id == name || (worker_id.size() > name.size() && worker_id[name.size()] == '#' &&
                                 worker_id.compare(0, name.size(), name) == 0);
  });
}

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_NAMES_H_
