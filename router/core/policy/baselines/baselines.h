// The rules of proxies and textbooks, to compare with. None of them uses expected lengths.
//
// In pool order, each request to one worker that can take it (ties: lowest index, unless said otherwise):
//   fcfs            most free slots. BF-IO paper, listing "FCFS" of section 6. A worker's free slots are B -
//   active, so with equal
//                   B this is join the shortest queue by count as well. The baseline that other rules' waits
//                   are compared with.
//   fcfs_fill       the first. FCFS as the text of the BF-IO paper and the authors' simulator have it. With
//   every slot taken it
//                   does not differ significantly from fcfs; below that it puts all requests on the first
//                   workers.
//   least_tokens    the smallest load. List scheduling (Graham, 1966); "JSQ" by tokens in the code of the
//   BF-IO paper. throttled       the first below three quarters of its slots; when there is none, the
//   smallest load. Domanal and Reddy (2013),
//                   in the BF-IO paper's related work, which names no threshold. In the source requests queue
//                   beyond the threshold; policies here leave no slot empty, hence the second half.
//   least_requests  the fewest active requests. BF-IO paper, section 6.1, "JSQ" by count. Ties rotate: the
//   search begins behind
//                   the worker used last, as in proxies, so that the first does not get all ties.
//   round_robin     in turn. BF-IO paper, section 6.1; the default of most reverse proxies.
//   power_of_d      of d drawn at random, the one with the fewest active requests (ties: drawn first).
//   Mitzenmacher (2001). With
//                   d >= G it is least_requests with random ties.
// By size:
//   lpt             as many of the oldest as there are free slots, largest first, to the smallest load.
//   Longest processing time
//                   first (Graham, 1969): the strongest baseline with fcfs's waits, because only the
//                   placement balances. When KV memory keeps one of them out, as least_tokens, so that memory
//                   favours the oldest.
//   min_min         of all that wait, the smallest first, to where it would finish its step first. Ibarra and
//   Kim (1977), Braun
//                   et al. (2001): i = argmin min_g (r_g + p_ig), r_g the worker's local step time and p_ig
//                   what the request adds, which grows with the prompt on every worker. Over a pool that
//                   never empties the large ones wait for ever.
//   max_min         the same, largest first. The small ones wait for ever.
// Both take the classes of priority one after the other.
//
// Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_BASELINES_BASELINES_H_
#define BFIO_ROUTER_CORE_POLICY_BASELINES_BASELINES_H_

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

std::unique_ptr<Policy> Fcfs();
std::unique_ptr<Policy> FcfsFill();
std::unique_ptr<Policy> LeastTokens();
std::unique_ptr<Policy> Throttled();
std::unique_ptr<Policy> LeastRequests();
std::unique_ptr<Policy> RoundRobin();
// REQUIRES: choices >= 1; `name` outlives the policy.
std::unique_ptr<Policy> PowerOfD(absl::string_view name, int32_t choices, uint64_t seed);
std::unique_ptr<Policy> Lpt();
std::unique_ptr<Policy> MinMin();
std::unique_ptr<Policy> MaxMin();

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BASELINES_BASELINES_H_
