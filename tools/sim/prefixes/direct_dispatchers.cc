// Rules of other routers, as their sources and documentation of November 2026 define them. Each sends a
// request to a rank as soon as it arrives, where it queues; a rule is a function of what its router knows.
//
// - direct_least_requests, direct_least_tokens: fewest requests; fewest prompt and generated tokens.
// - direct_vllm: vLLM 0.33's balancer: requests, and KV use where requests queue.
// - direct_trtllm: TensorRT-LLM's balancer: the fewest tokens, of the ranks with fewer requests than the mean
//   with this one, rounded up.
// - smg_cache_aware: SMG 1.14. If more than 30 % of the prompt match a prompt sent before, the fewest
//   requests of the ranks to which the longest match went, unless that is 64 and half the mean more than the
//   mean; otherwise the fewest requests. Its tree holds 2^26 tokens.
// - smg_least_load: SMG 1.14: queued tokens, polled every 10 s, and those sent since, over 2,000 tokens/s,
//   and 0.15 s k / (1 - k) for the share k of KV in use.
// - router_power_of_two: vllm-router 0.1.17: fewer requests of two random ranks, polled every 5 s, plus own.
// - router_kv_aware: vllm-router 0.1.17: most tokens in the cache; fewest requests where there are none.
// - llmd_prefix_load: llm-d 0.10: the fewest uncached tokens in work, of the ranks to which 80 % of the
//   prompt went before, unless another would begin 18 s earlier at 15,928 tokens/s.
// - dynamo_kv: Dynamo 1.6's KV router at temperature 0: prompt blocks to compute, and blocks of active
//   requests' prompts, where each block counts once.
//
// The caches' contents are known exactly to router_kv_aware and dynamo_kv. Threads: one.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "common/base/rng.h"
#include "router/core/prefix/prefix_caches.h"
#include "tools/sim/prefixes/prefix_run.h"

namespace bfio::sim {
namespace {

constexpr double kNoCost = std::numeric_limits<double>::infinity();

struct RankState {
  explicit RankState(int64_t tree_tokens) : sent(tree_tokens, tree_tokens / core::kPrefixBlockTokens) {}
  // Requests that have not ended, and the uncached tokens of their prompts until their first tokens.
  int64_t requests = 0, prompt_tokens = 0;
  // Prompts sent there.
  core::PrefixCache sent;
  // Number of active requests that use each prompt block.
  absl::flat_hash_map<uint64_t, int32_t> blocks;
  // As of the last poll; and the prompt tokens sent since.
  int64_t polled_requests = 0, polled_queue = 0, since_poll = 0;
  double polled_kv = 0;
};

// What a rule sees when a request arrives.
struct Arrival {
  const ServeGroup& group;
  const std::vector<RankState>& ranks;
  const ServeRequest& request;
  Rng& rng;

  const ServeRank& engine(size_t rank) const { return group.ranks()[rank]; }
  int64_t Cached(size_t rank) const { return group.Cached(static_cast<int32_t>(rank), request); }
  // Share of the prompt that begins prompts sent to the rank.
  double Sent(size_t rank) const {
    if (request.prefix == nullptr) return 0;
    return static_cast<double>(ranks[rank].sent.Find(*request.prefix)) / static_cast<double>(request.prompt);
  }
  // By rank.
  template <typename Of>
  std::vector<double> Each(const Of& of) const {
    std::vector<double> each;
    for (size_t g = 0; g < ranks.size(); ++g) each.push_back(static_cast<double>(of(g)));
    return each;
  }
  std::vector<double> Requests() const {
    return Each([this](size_t g) { return ranks[g].requests; });
  }
};

using Costs = std::vector<double>;

Costs LeastRequests(const Arrival& at) {
  return at.Requests();
}

Costs LeastTokens(const Arrival& at) {
  return at.Each([&](size_t g) { return at.engine(g).resident_tokens(); });
}

Costs Vllm(const Arrival& at) {
  return at.Each([&](size_t g) {
    const auto waiting = static_cast<double>(at.engine(g).queued());
    return static_cast<double>(at.ranks[g].requests) +
           6 * waiting * std::max(0.0, at.group.KvUse(static_cast<int32_t>(g)) - 0.5);
  });
}

Costs Trtllm(const Arrival& at) {
  const Costs requests = at.Requests(), tokens = LeastTokens(at);
  const double all = std::accumulate(requests.begin(), requests.end(), 1.0);
  const double most = std::ceil(all / static_cast<double>(requests.size()));
  return at.Each([&](size_t g) { return requests[g] < most ? tokens[g] : kNoCost; });
}

Costs SmgCacheAware(const Arrival& at) {
  const Costs requests = at.Requests(), sent = at.Each([&](size_t g) { return at.Sent(g); });
  const double longest = *std::max_element(sent.begin(), sent.end());
  const double mean =
      std::accumulate(requests.begin(), requests.end(), 0.0) / static_cast<double>(requests.size());
  if (longest <= 0.3) return requests;
  Costs costs = at.Each([&](size_t g) { return sent[g] == longest ? requests[g] : kNoCost; });
  const double least = *std::min_element(costs.begin(), costs.end());
  return least > 1.5 * mean && least > mean + 64 ? requests : costs;
}

Costs SmgLeastLoad(const Arrival& at) {
  return at.Each([&](size_t g) {
    const RankState& rank = at.ranks[g];
    const double kv = std::min(rank.polled_kv, 0.999);
    return static_cast<double>(rank.polled_queue + rank.since_poll) / 2'000 + 0.15 * kv / (1 - kv);
  });
}

Costs PowerOfTwo(const Arrival& at) {
  const uint64_t ranks = at.ranks.size(), one = at.rng.Below(ranks);
  const uint64_t two = (one + 1 + at.rng.Below(std::max<uint64_t>(1, ranks - 1))) % ranks;
  return at.Each([&](size_t g) {
    return g == one || g == two ? static_cast<double>(at.ranks[g].polled_requests + at.ranks[g].requests)
                                : kNoCost;
  });
}

Costs KvAware(const Arrival& at) {
  Costs costs = at.Each([&](size_t g) { return -at.Cached(g); });
  return *std::min_element(costs.begin(), costs.end()) < 0 ? costs : at.Requests();
}

Costs PrefixThenLoad(const Arrival& at) {
  const Costs tokens = at.Each([&](size_t g) { return at.ranks[g].prompt_tokens; });
  const Costs sticky = at.Each([&](size_t g) { return at.Sent(g) >= 0.8 ? tokens[g] : kNoCost; });
  const double least = *std::min_element(tokens.begin(), tokens.end()),
               of_sticky = *std::min_element(sticky.begin(), sticky.end());
  return of_sticky - least <= 18 * 15'928 ? sticky : tokens;
}

size_t BlocksOf(const ServeRequest& request) {
  return static_cast<size_t>(request.prompt / kEngineBlockTokens);
}

Costs DynamoKv(const Arrival& at) {
  return at.Each([&](size_t g) {
    const RankState& rank = at.ranks[g];
    const int64_t prompts = rank.prompt_tokens + at.request.prompt - at.Cached(g);
    size_t blocks = rank.blocks.size() + BlocksOf(at.request);
    for (size_t i = 0; i < BlocksOf(at.request) && rank.blocks.contains(at.request.blocks[i]); ++i) --blocks;
    return static_cast<double>(prompts) / kEngineBlockTokens + static_cast<double>(blocks);
  });
}

struct Rule {
  const char* name;
  // By rank; the least is chosen.
  Costs (*costs)(const Arrival&);
  double poll_s = kNoCost;
  bool counts_blocks = false;
};

constexpr Rule kRules[] = {
    {"direct_least_requests", LeastRequests},
    {"direct_least_tokens", LeastTokens},
    {"direct_vllm", Vllm},
    {"direct_trtllm", Trtllm},
    {"smg_cache_aware", SmgCacheAware},
    {"smg_least_load", SmgLeastLoad, 10},
    {"router_power_of_two", PowerOfTwo, 5},
    {"router_kv_aware", KvAware},
    {"llmd_prefix_load", PrefixThenLoad},
    {"dynamo_kv", DynamoKv, kNoCost, true},
};

class DirectDispatcher final : public EngineDispatcher {
 public:
  DirectDispatcher(const Rule& rule, int64_t token_budget, ServeGroup* group,
                   const std::vector<ServeRequest>* all)
      : rule_(rule),
        token_budget_(token_budget),
        group_(group),
        all_(all),
        ranks_(group->ranks().size(), RankState(kTreeTokens / std::ssize(group->ranks()))) {}

  void Arrived(ServeRequestIndex index) override {
    const ServeRequest& request = (*all_)[index];
    if (request.arrival_s >= next_poll_s_) Poll(request.arrival_s);
    const Costs costs = rule_.costs({*group_, ranks_, request, rng_});
    // Ranks of equal cost take turns.
    size_t best = next_;
    for (size_t turn = 1; turn < ranks_.size(); ++turn) {
      if (const size_t rank = (next_ + turn) % ranks_.size(); costs[rank] < costs[best]) best = rank;
    }
    next_ = (best + 1) % ranks_.size();
    Send(request, index, best);
  }

  void Stepped(int32_t stepper, const ServeStep& step, double now_s) override {
    for (const auto& [index, g] : step.first_tokens) ranks_[g].prompt_tokens -= left_.extract(index).mapped();
    for (const auto& [index, g] : step.ended) {
      RankState& rank = ranks_[g];
      --rank.requests;
      const ServeRequest& request = (*all_)[index];
      for (size_t i = 0; rule_.counts_blocks && i < BlocksOf(request); ++i) {
        const auto it = rank.blocks.find(request.blocks[i]);
        if (--it->second == 0) rank.blocks.erase(it);
      }
    }
  }

  bool Order(int32_t stepper, std::vector<RankOrder>& orders) override {
    FillBudget(*group_, stepper, token_budget_, orders);
    return group_->HasWork(stepper);
  }

 private:
  static constexpr int64_t kTreeTokens = int64_t{1} << 26;

  void Poll(double now_s) {
    next_poll_s_ = now_s + rule_.poll_s;
    for (size_t g = 0; g < ranks_.size(); ++g) {
      RankState& rank = ranks_[g];
      rank.polled_requests = rank.requests;
      rank.polled_queue = group_->ranks()[g].prompt_tokens;
      rank.polled_kv = group_->KvUse(static_cast<int32_t>(g));
      rank.since_poll = 0;
    }
  }

  void Send(const ServeRequest& request, ServeRequestIndex index, size_t g) {
    RankState& rank = ranks_[g];
    ++rank.requests;
    rank.since_poll += request.prompt;
    rank.prompt_tokens += left_[index] = request.prompt - group_->Cached(static_cast<int32_t>(g), request);
    if (request.prefix != nullptr) rank.sent.Touch(*request.prefix);
    for (size_t i = 0; rule_.counts_blocks && i < BlocksOf(request); ++i) ++rank.blocks[request.blocks[i]];
    group_->Bind(index, static_cast<int32_t>(g));
  }

  const Rule& rule_;
  const int64_t token_budget_;
  ServeGroup* const group_;
  const std::vector<ServeRequest>* const all_;
  std::vector<RankState> ranks_;
  // Uncached tokens of prompts when they were sent, until their first tokens.
  absl::flat_hash_map<ServeRequestIndex, int64_t> left_;
  Rng rng_{1};
  double next_poll_s_ = 0;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<EngineDispatcher> MakeDirectDispatcher(const std::string& name, int64_t token_budget,
                                                       ServeGroup* group,
                                                       const std::vector<ServeRequest>* requests) {
  for (const Rule& rule : kRules) {
    if (rule.name == name) return std::make_unique<DirectDispatcher>(rule, token_budget, group, requests);
  }
  return nullptr;
}

}  // namespace bfio::sim
