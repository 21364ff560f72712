// The prompts that ranks of a barrier still have to compute.
//
// Purpose: an engine may compute a long prompt alone, and meanwhile none of the ranks of its barrier delivers
// tokens. Each rank reports its longest prompt; all read the longest of them. Pure. Threads: one. Tokens.
#ifndef BFIO_ROUTER_ENGINE_LINK_BARRIER_PROMPTS_H_
#define BFIO_ROUTER_ENGINE_LINK_BARRIER_PROMPTS_H_

#include <cstdint>
#include <map>
#include <set>

namespace bfio::router {

class BarrierPrompts {
 public:
  // 0: the rank has none, or is gone.
  void Set(uint64_t rank, int64_t tokens) {
    const auto it = by_rank_.find(rank);
    const int64_t before = it == by_rank_.end() ? 0 : it->second;
    if (before == tokens) return;
    if (before > 0) by_length_.erase(by_length_.find(before));
    if (tokens > 0) by_length_.insert(tokens);
    if (tokens > 0) {
      by_rank_[rank] = tokens;
    } else {
      by_rank_.erase(it);
    }
  }
  // 0: no rank has a prompt.
  int64_t longest() const { return by_length_.empty() ? 0 : *by_length_.rbegin(); }

 private:
  std::map<uint64_t, int64_t> by_rank_;
  std::multiset<int64_t> by_length_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_BARRIER_PROMPTS_H_
