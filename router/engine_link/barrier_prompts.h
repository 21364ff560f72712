// The prompts that ranks of a barrier still have to compute.
//
// Purpose: an engine may compute a long prompt alone, and none of the ranks that meet in a step brings tokens
// meanwhile. Each rank reports its longest prompt; all see the longest of them. Pure. Threads: one. Tokens.
#ifndef BFIO_ROUTER_ENGINE_LINK_BARRIER_PROMPTS_H_
#define BFIO_ROUTER_ENGINE_LINK_BARRIER_PROMPTS_H_

#include <algorithm>
#include <cstdint>
#include <map>

namespace bfio::router {

class BarrierPrompts {
 public:
  // 0: the rank has none, or is gone.
  void Set(uint64_t rank, int64_t tokens) {
    if (tokens > 0) {
      by_rank_[rank] = tokens;
    } else {
      by_rank_.erase(rank);
    }
  }
  // 0: no rank has one.
  int64_t longest() const {
    int64_t longest = 0;
    for (const auto& [rank, tokens] : by_rank_) longest = std::max(longest, tokens);
    return longest;
  }

 private:
  std::map<uint64_t, int64_t> by_rank_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_BARRIER_PROMPTS_H_
