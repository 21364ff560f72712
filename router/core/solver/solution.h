// The solver's output.
//
// Threads: any, plain data.
#ifndef BFIO_ROUTER_CORE_SOLVER_SOLUTION_H_
#define BFIO_ROUTER_CORE_SOLVER_SOLUTION_H_

#include <cstdint>
#include <vector>

namespace bfio::core {

// The item stays waiting.
inline constexpr int32_t kUnassigned = -1;

struct Solution {
  // The worker of each item, or kUnassigned.
  std::vector<int32_t> worker_of;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_SOLUTION_H_
