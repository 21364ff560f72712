#include "router/frontend/gateway/answers.h"

#include "absl/strings/str_cat.h"

namespace bfio::router::gateway {

std::vector<RankLoad> RanksOf(const Loads& loads, RankView view) {
  if (view == RankView::kEach) {
    std::vector<RankLoad> ranks = loads.loads;
    for (RankLoad& rank : ranks) {
      rank.used_tokens *= loads.ranks;
      rank.max_tokens *= loads.ranks;
    }
    return ranks;
  }
  RankLoad sum;
  for (const RankLoad& load : loads.loads) {
    sum.running_requests += load.running_requests;
    // All ranks share one pool, so its size is not summed.
    sum.waiting_requests = load.waiting_requests;
    sum.waiting_tokens = load.waiting_tokens;
    sum.used_tokens += load.used_tokens;
    sum.max_tokens += load.max_tokens;
    sum.tokens_per_second += load.tokens_per_second;
    sum.slots += load.slots;
  }
  return {sum};
}

absl::StatusOr<std::vector<RankLoad>> SelectedRanks(const Loads& loads, RankView view,
                                                    std::optional<int32_t> rank) {
  std::vector<RankLoad> ranks = RanksOf(loads, view);
  if (!rank) return ranks;
  if (*rank < 0 || *rank >= static_cast<int64_t>(ranks.size())) {
    return absl::NotFoundError(absl::StrCat("dp_rank is ", *rank, "; data_parallel_size is ", ranks.size()));
  }
  std::erase_if(ranks, [&](const RankLoad& one) { return static_cast<int64_t>(one.rank) != *rank; });
  return ranks;
}

double TokenUsage(const RankLoad& load) {
  return load.max_tokens > 0 ? static_cast<double>(load.used_tokens) / static_cast<double>(load.max_tokens)
                             : 0;
}

EngineSize SizeOf(const Loads& loads, RankView view) {
  EngineSize size;
  for (const RankLoad& rank : RanksOf(loads, view)) {
    ++size.ranks;
    size.requests += rank.running_requests + rank.waiting_requests;
    size.slots = std::max(size.slots, rank.slots);
    size.max_tokens = std::max(size.max_tokens, rank.max_tokens);
  }
  return size;
}

std::vector<common_pb::EngineLoad> LoadRecords(const Loads& loads, RankView view) {
  std::vector<common_pb::EngineLoad> records;
  for (const RankLoad& rank : RanksOf(loads, view)) {
    common_pb::EngineLoad& out = records.emplace_back();
    out.set_running_requests(static_cast<uint32_t>(Clamped(rank.running_requests)));
    out.set_waiting_requests(static_cast<uint32_t>(Clamped(rank.waiting_requests)));
    out.set_waiting_uncached_tokens(static_cast<uint32_t>(Clamped(rank.waiting_tokens)));
    out.set_token_usage(TokenUsage(rank));
    out.set_active_token_usage(out.token_usage());
    out.set_gen_throughput(rank.tokens_per_second);
    out.set_max_running_requests(static_cast<uint32_t>(Clamped(rank.slots)));
    out.set_load_only(true);
    out.set_num_used_tokens(Clamped(rank.used_tokens));
    out.set_max_total_num_tokens(Clamped(rank.max_tokens));
  }
  return records;
}

}  // namespace bfio::router::gateway
