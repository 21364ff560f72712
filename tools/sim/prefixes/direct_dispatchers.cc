// Rules of other routers, as far as they are public. Each sends a request to a rank as soon as it arrives.
//
//   direct_least_requests  to the rank with the fewest requests.
//   sglang_cache_aware     SGLang's gateway: if ranks' requests differ by more than 64 and a factor of 1.5,
//                          to the rank with the fewest; otherwise to the rank whose earlier prompts match
//                          most of this one, if that is more than 30 %; otherwise to the rank with the
//                          smallest tree of prompts. The tree's bound of 2^26 characters is 2^24 tokens here.
//   dynamo_kv              NVIDIA Dynamo's KV router at temperature 0: to the rank with the smallest sum of
//                          prompt blocks to compute and blocks of active requests' prompts, where each block
//                          counts once. The contents of the ranks' caches are known exactly.
//
// Threads: one.
#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "router/core/prefix/prefix_caches.h"
#include "tools/sim/prefixes/prefix_run.h"

namespace bfio::sim {
namespace {

class DirectDispatcher : public EngineDispatcher {
 public:
  DirectDispatcher(int64_t token_budget, ServeGroup* group, const std::vector<ServeRequest>* all)
      : token_budget_(token_budget), group_(group), all_(all), requests_(group->ranks().size()) {}

  void Arrived(ServeRequestIndex index) override {
    const int32_t rank = Choose((*all_)[index]);
    ++requests_[static_cast<size_t>(rank)];
    next_ = (rank + 1) % static_cast<int32_t>(requests_.size());
    Sent(rank, index);
    group_->Bind(index, rank);
  }

  void Stepped(int32_t stepper, const ServeStep& step, double now_s) override {
    for (const auto& [index, rank] : step.first_tokens) Computed(rank, index);
    for (const auto& [index, rank] : step.ended) {
      Ended(rank, (*all_)[index]);
      --requests_[static_cast<size_t>(rank)];
    }
  }

  bool Order(int32_t stepper, std::vector<RankOrder>& orders) override {
    FillBudget(*group_, stepper, token_budget_, orders);
    return group_->HasWork(stepper);
  }

 protected:
  virtual int32_t Choose(const ServeRequest& request) = 0;
  virtual void Sent(int32_t rank, ServeRequestIndex index) {}
  virtual void Computed(int32_t rank, ServeRequestIndex index) {}
  virtual void Ended(int32_t rank, const ServeRequest& request) {}

  // The rank with the least cost; ranks of equal cost take turns.
  template <typename Cost>
  int32_t Least(const Cost& cost) const {
    const auto ranks = static_cast<int32_t>(requests_.size());
    int32_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (int32_t turn = 0; turn < ranks; ++turn) {
      const int32_t rank = (next_ + turn) % ranks;
      const auto at = static_cast<double>(cost(static_cast<size_t>(rank)));
      if (at >= least) continue;
      least = at;
      best = rank;
    }
    return best;
  }

  const int64_t token_budget_;
  ServeGroup* const group_;
  const std::vector<ServeRequest>* const all_;
  // Number of requests by rank.
  std::vector<int64_t> requests_;

 private:
  int32_t next_ = 0;
};

class DirectLeastRequests final : public DirectDispatcher {
 public:
  using DirectDispatcher::DirectDispatcher;

 private:
  int32_t Choose(const ServeRequest&) override {
    return Least([this](size_t rank) { return requests_[rank]; });
  }
};

class SglangCacheAware final : public DirectDispatcher {
 public:
  SglangCacheAware(int64_t token_budget, ServeGroup* group, const std::vector<ServeRequest>* all)
      : DirectDispatcher(token_budget, group, all),
        trees_(group->ranks().size(),
               core::PrefixCache(kTreeTokens, kTreeTokens / core::kPrefixBlockTokens)) {}

 private:
  static constexpr int64_t kTreeTokens = int64_t{1} << 24;
  static constexpr int64_t kBalanceAbs = 64;
  static constexpr double kBalanceRel = 1.5, kCacheThreshold = 0.3;

  static absl::Span<const uint64_t> Prefix(const ServeRequest& request) {
    return request.prefix == nullptr ? absl::Span<const uint64_t>()
                                     : absl::Span<const uint64_t>(*request.prefix);
  }

  int32_t Choose(const ServeRequest& request) override {
    const auto [fewest, most] = std::minmax_element(requests_.begin(), requests_.end());
    if (*most - *fewest > kBalanceAbs &&
        static_cast<double>(*most) > kBalanceRel * static_cast<double>(*fewest))
      return Least([this](size_t rank) { return requests_[rank]; });
    const auto found = [&](size_t rank) { return trees_[rank].Find(Prefix(request)); };
    const int32_t best = Least([&](size_t rank) { return -found(rank); });
    const auto share =
        static_cast<double>(found(static_cast<size_t>(best))) / static_cast<double>(request.prompt);
    if (share > kCacheThreshold) return best;
    return Least([this](size_t rank) { return trees_[rank].tokens(); });
  }
  void Sent(int32_t rank, ServeRequestIndex index) override {
    trees_[static_cast<size_t>(rank)].Touch(Prefix((*all_)[index]));
  }

  std::vector<core::PrefixCache> trees_;
};

class DynamoKv final : public DirectDispatcher {
 public:
  DynamoKv(int64_t token_budget, ServeGroup* group, const std::vector<ServeRequest>* all)
      : DirectDispatcher(token_budget, group, all), loads_(group->ranks().size()) {}

 private:
  static constexpr double kOverlapWeight = 1;
  struct Load {
    // Uncached tokens of prompts that have no first token yet.
    int64_t prompt_tokens = 0;
    // Number of active requests that use each prompt block.
    absl::flat_hash_map<uint64_t, int32_t> blocks;
  };

  static size_t BlocksOf(const ServeRequest& request) {
    return static_cast<size_t>(request.prompt / kEngineBlockTokens);
  }

  int32_t Choose(const ServeRequest& request) override {
    return Least([&](size_t rank) {
      const Load& load = loads_[rank];
      const int64_t prompts =
          load.prompt_tokens + request.prompt - group_->Cached(static_cast<int32_t>(rank), request);
      auto decodes = static_cast<int64_t>(load.blocks.size() + BlocksOf(request));
      for (size_t i = 0; i < BlocksOf(request) && load.blocks.contains(request.blocks[i]); ++i) --decodes;
      return kOverlapWeight * static_cast<double>(prompts) / kEngineBlockTokens +
             static_cast<double>(decodes);
    });
  }
  void Sent(int32_t rank, ServeRequestIndex index) override {
    const ServeRequest& request = (*all_)[index];
    Load& load = loads_[static_cast<size_t>(rank)];
    load.prompt_tokens += left_[index] = request.prompt - group_->Cached(rank, request);
    for (size_t i = 0; i < BlocksOf(request); ++i) ++load.blocks[request.blocks[i]];
  }
  void Computed(int32_t rank, ServeRequestIndex index) override {
    loads_[static_cast<size_t>(rank)].prompt_tokens -= left_[index];
    left_.erase(index);
  }
  void Ended(int32_t rank, const ServeRequest& request) override {
    Load& load = loads_[static_cast<size_t>(rank)];
    for (size_t i = 0; i < BlocksOf(request); ++i) {
      const auto it = load.blocks.find(request.blocks[i]);
      if (--it->second == 0) load.blocks.erase(it);
    }
  }

  std::vector<Load> loads_;
  absl::flat_hash_map<ServeRequestIndex, int64_t> left_;
};

}  // namespace

std::unique_ptr<EngineDispatcher> MakeDirectDispatcher(const std::string& rule, int64_t token_budget,
                                                       ServeGroup* group,
                                                       const std::vector<ServeRequest>* requests) {
  const auto make = [&]<class Rule>() -> std::unique_ptr<EngineDispatcher> {
    return std::make_unique<Rule>(token_budget, group, requests);
  };
  if (rule == "direct_least_requests") return make.operator()<DirectLeastRequests>();
  if (rule == "sglang_cache_aware") return make.operator()<SglangCacheAware>();
  if (rule == "dynamo_kv") return make.operator()<DynamoKv>();
  return nullptr;
}

}  // namespace bfio::sim
