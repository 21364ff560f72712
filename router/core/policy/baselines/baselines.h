// The rules of proxies and textbooks, as baselines. None of them uses expected lengths.
//
// Purpose: comparisons in the simulator and in benchmarks; they stand for routers without BF-IO. "Pool
// order": the requests are placed one by one, each on a worker that can take it (ties: lowest index, unless
// stated otherwise). Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_BASELINES_BASELINES_H_
#define BFIO_ROUTER_CORE_POLICY_BASELINES_BASELINES_H_

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

// Pool order, most free slots. BF-IO paper, listing "FCFS" of section 6. A worker's free slots are B -
// active, so with equal B this is join the shortest queue by count as well. It is the reference for the waits
// of other rules.
std::unique_ptr<Policy> Fcfs();

// Pool order, the first worker. FCFS as in the text of the BF-IO paper and in the authors' simulator. When
// all slots are taken, it does not differ significantly from Fcfs; at lower load it puts all requests on the
// first workers.
std::unique_ptr<Policy> FcfsFill();

// Pool order, the smallest load. List scheduling (Graham, 1966); "JSQ" by tokens in the code of the BF-IO
// paper.
std::unique_ptr<Policy> LeastTokens();

// Pool order, the first worker below three quarters of its slots; if there is none, the smallest load.
// Domanal and Reddy (2013), in the BF-IO paper's related work, which names no threshold. In the source,
// requests queue beyond the threshold. Policies here leave no slot empty, hence the fallback.
std::unique_ptr<Policy> Throttled();

// Pool order, the fewest active requests. BF-IO paper, section 6.1, "JSQ" by count. Ties rotate: the search
// begins behind the worker used last, as in proxies, so that the first worker does not win all ties.
std::unique_ptr<Policy> LeastRequests();

// Pool order, the workers in turn. BF-IO paper, section 6.1; the default of most reverse proxies.
std::unique_ptr<Policy> RoundRobin();

// Pool order; draws `choices` workers at random and takes the one with the fewest active requests (ties:
// drawn first). Mitzenmacher (2001). With as many choices as workers it is LeastRequests with random ties.
// REQUIRES: choices >= 1; `name` outlives the policy.
std::unique_ptr<Policy> PowerOfD(absl::string_view name, int32_t choices, uint64_t seed);

// As many of the oldest as there are free slots, largest first, to the smallest load. Longest processing time
// first (Graham, 1969): the strongest baseline with Fcfs's waits, because only the placement balances. When
// one of them does not fit into KV memory, the rule is that of LeastTokens, so that the oldest get memory
// first.
std::unique_ptr<Policy> Lpt();

// All that wait in the highest class of priority, smallest first, each to the worker that would finish its
// step first with it; then the next class. Ibarra and Kim (1977), Braun et al. (2001): i = argmin min_g (r_g
// + p_ig), with r_g the worker's local step time and p_ig what the request adds, which grows with the prompt
// on every worker. If the pool never empties, large requests starve.
std::unique_ptr<Policy> MinMin();

// As MinMin, largest first: small requests starve.
std::unique_ptr<Policy> MaxMin();

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BASELINES_BASELINES_H_
