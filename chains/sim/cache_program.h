// The optimal capacities of given chains, as an integer program.
//
// Purpose: the optimum that greedy cache allocation is compared with: problem (7) of "Serving
// Chain-structured Jobs with Large Memory Footprints" with the placement and the chains given,
//   min sum_k c_k   with   sum_k mu_k c_k >= needed rate,   sum_k c_k m_jk <= slots of each server j,
// c_k integer. Written as text for solvers that prove optimality (CBC, HiGHS, glpsol), and solved here by
// branch and bound if it is small. Pure functions. Threads: any, no state.
#ifndef BFIO_CHAINS_SIM_CACHE_PROGRAM_H_
#define BFIO_CHAINS_SIM_CACHE_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/composition.h"

namespace bfio::sim {

struct CacheProgram {
  // The fastest first; their capacities are not used.
  std::vector<core::ServerChain> chains;
  std::vector<int64_t> slots;  // by server
  double needed_rate = 0;
};

// CPLEX LP text: variables c_K, rows "rate" and "server_J".
std::string CacheProgramLp(const CacheProgram& program);

struct CacheSolution {
  std::vector<int64_t> capacities;  // by chain
  int64_t jobs = 0;                 // their sum
  // False if the search ended early: the solution is then feasible and the best found.
  bool optimal = false;
};

// nullopt if no capacities give the needed rate, or none were found within `most_nodes`.
std::optional<CacheSolution> SolveCacheProgram(const CacheProgram& program, int64_t most_nodes);

// Concurrent jobs that the chains need for the rate, the fastest first up to their capacities, as GCA takes
// them. nullopt if all of them together give less.
std::optional<int64_t> JobServersNeeded(absl::Span<const core::ServerChain> chains, double needed_rate);

}  // namespace bfio::sim

#endif  // BFIO_CHAINS_SIM_CACHE_PROGRAM_H_
