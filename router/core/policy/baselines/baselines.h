// The rules of proxies and textbooks, as baselines. None of them uses expected lengths. Comparisons in the
// simulator and in benchmarks; they stand for routers without BF-IO. "Pool order": the requests are placed
// one by one, each on a worker that can take it (ties: lowest index, unless stated otherwise). Threads: as
// Policy.
#pragma once

#include <cstdint>
#include <memory>

#include "router/core/policy/policy.h"

namespace bfio::core {

// Pool order, most free slots. BF-IO paper, listing "FCFS" of section 6. A worker's free slots are B -
// active, so with equal B this is join the shortest queue by count as well. It is the reference for the waits
// of other rules.
std::unique_ptr<Policy> Fcfs();

// Pool order, the smallest load. List scheduling (Graham, 1966); "JSQ" by tokens in the code of the BF-IO
// paper.
std::unique_ptr<Policy> LeastTokens();

// Pool order, the fewest active requests. BF-IO paper, section 6.1, "JSQ" by count. Ties rotate: the search
// begins behind the worker used last, as in proxies, so that the first worker does not win all ties.
std::unique_ptr<Policy> LeastRequests();

// Pool order, the workers in turn. BF-IO paper, section 6.1; the default of most reverse proxies.
std::unique_ptr<Policy> RoundRobin();

// Pool order; draws two workers at random and takes the one with fewer active requests (ties: drawn first).
// Mitzenmacher (2001).
std::unique_ptr<Policy> PowerOfTwo(uint64_t seed);

// Pool order, the fastest worker: a rank that steps independently, or a chain of servers. The waiting pool is
// the central queue of Join-the-Fastest-Free-Chain (Algorithm 3 of "Serving Chain-structured Jobs with Large
// Memory Footprints").
std::unique_ptr<Policy> Jffc();

// As many of the oldest as there are free slots, largest first, to the smallest load. Longest processing time
// first (Graham, 1969): the strongest baseline with Fcfs's waits, because only the placement balances. When
// one of them does not fit into KV memory, the rule is that of LeastTokens, so that the oldest get memory
// first.
std::unique_ptr<Policy> Lpt();

}  // namespace bfio::core
