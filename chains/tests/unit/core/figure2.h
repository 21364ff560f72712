// The example of Figure 2 of "Serving Chain-structured Jobs with Large Memory Footprints".
#ifndef BFIO_CHAINS_TESTS_UNIT_CORE_FIGURE2_H_
#define BFIO_CHAINS_TESTS_UNIT_CORE_FIGURE2_H_

#include <vector>

#include "absl/strings/str_cat.h"
#include "chains/core/server_pool.h"

namespace bfio::core {

inline constexpr double kEpsilon = 1e-3;

inline ChainService Figure2Service() {
  return {.blocks = 3, .block_size = 1, .cache_size = 0.1};
}

// Server k of the figure is index k - 1 here.
inline std::vector<ChainServer> Figure2Servers() {
  std::vector<ChainServer> servers;
  for (int l = 1; l <= 5; ++l) {
    const bool second = l == 2;
    servers.push_back({absl::StrCat("s", l), second ? 3.0 : 2.0, second ? 2.0 : 1.0, l * kEpsilon});
  }
  return servers;
}

}  // namespace bfio::core

#endif  // BFIO_CHAINS_TESTS_UNIT_CORE_FIGURE2_H_
