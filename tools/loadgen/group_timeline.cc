#include "tools/loadgen/group_timeline.h"

#include <algorithm>
#include <numeric>

namespace bfio::loadgen {

void GroupBin::Merge(const GroupBin& other) {
  steps += other.steps;
  max_load_tokens += other.max_load_tokens;
  mean_load_tokens += other.mean_load_tokens;
  waiting_requests += other.waiting_requests;
  if (other.ranks.size() > ranks.size()) ranks.resize(other.ranks.size());
  for (size_t i = 0; i < other.ranks.size(); ++i) {
    ranks[i].steps += other.ranks[i].steps;
    ranks[i].load_tokens += other.ranks[i].load_tokens;
    ranks[i].local_s += other.ranks[i].local_s;
    ranks[i].wait_s += other.ranks[i].wait_s;
  }
}

void GroupTimeline::Add(double seconds, const GroupStep& step) {
  const size_t size = step.load_tokens.size();
  if (size == 0 || step.local_s.size() != size || step.wait_s.size() != size) return;
  GroupBin& bin = bins_.At(seconds);
  ++bin.steps;
  bin.max_load_tokens += *std::max_element(step.load_tokens.begin(), step.load_tokens.end());
  bin.mean_load_tokens +=
      std::accumulate(step.load_tokens.begin(), step.load_tokens.end(), 0.0) / static_cast<double>(size);
  bin.waiting_requests += step.waiting_requests;
  const size_t ranks = std::min(size, kMostRanks);
  if (ranks > bin.ranks.size()) bin.ranks.resize(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    RankSums& rank = bin.ranks[i];
    ++rank.steps;
    rank.load_tokens += step.load_tokens[i];
    rank.local_s += step.local_s[i];
    rank.wait_s += step.wait_s[i];
  }
}

}  // namespace bfio::loadgen
