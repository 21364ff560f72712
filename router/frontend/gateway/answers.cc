#include "router/frontend/gateway/answers.h"

namespace bfio::router::gateway {

RankLoad SumOf(const Loads& loads) {
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
  return sum;
}

double TokenUsage(const RankLoad& load) {
  return load.max_tokens > 0 ? static_cast<double>(load.used_tokens) / static_cast<double>(load.max_tokens)
                             : 0;
}

common_pb::EngineLoad LoadRecord(const Loads& loads) {
  const RankLoad rank = SumOf(loads);
  common_pb::EngineLoad out;
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
  return out;
}

}  // namespace bfio::router::gateway
