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
#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "router/core/prefix/prefix_caches.h"
#include "tools/sim/prefixes/dispatcher.h"

namespace bfio::sim {
namespace {

class DirectDispatcher : public PrefixDispatcher {
 public:
  explicit DirectDispatcher(const std::vector<EngineModel>& ranks) : ranks_(ranks), requests_(ranks.size()) {}

  std::vector<Dispatch> Arrived(const PrefixRequest& request) override {
    const int32_t rank = Choose(request);
    ++requests_[static_cast<size_t>(rank)];
    next_ = (rank + 1) % static_cast<int32_t>(ranks_.size());
    Sent(rank, request);
    return {{&request, rank}};
  }

  std::vector<Dispatch> Stepped(int32_t rank, const EngineStep& step) override {
    for (const EngineStep::First& first : step.first_tokens) Computed(rank, *first.request);
    for (const PrefixRequest* request : step.finished) Ended(rank, *request);
    requests_[static_cast<size_t>(rank)] -= static_cast<int64_t>(step.finished.size());
    return {};
  }

 protected:
  virtual int32_t Choose(const PrefixRequest& request) = 0;
  virtual void Sent(int32_t rank, const PrefixRequest& request) {}
  virtual void Computed(int32_t rank, const PrefixRequest& request) {}
  virtual void Ended(int32_t rank, const PrefixRequest& request) {}

  // The rank with the least cost; ranks of equal cost take turns.
  template <typename Cost>
  int32_t Least(const Cost& cost) const {
    const auto ranks = static_cast<int32_t>(ranks_.size());
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

  const std::vector<EngineModel>& ranks_;
  std::vector<int64_t> requests_;

 private:
  int32_t next_ = 0;
};

class DirectLeastRequests final : public DirectDispatcher {
 public:
  using DirectDispatcher::DirectDispatcher;

 private:
  int32_t Choose(const PrefixRequest&) override {
    return Least([this](size_t rank) { return requests_[rank]; });
  }
};

class SglangCacheAware final : public DirectDispatcher {
 public:
  explicit SglangCacheAware(const std::vector<EngineModel>& ranks)
      : DirectDispatcher(ranks),
        trees_(ranks.size(), core::PrefixCache(kTreeTokens, kTreeTokens / core::kPrefixBlockTokens)) {}

 private:
  static constexpr int64_t kTreeTokens = int64_t{1} << 24;
  static constexpr int64_t kBalanceAbs = 64;
  static constexpr double kBalanceRel = 1.5, kCacheThreshold = 0.3;

  static absl::Span<const uint64_t> Prefix(const PrefixRequest& request) {
    return request.prefix == nullptr ? absl::Span<const uint64_t>()
                                     : absl::Span<const uint64_t>(*request.prefix);
  }

  int32_t Choose(const PrefixRequest& request) override {
    const auto [fewest, most] = std::minmax_element(requests_.begin(), requests_.end());
    if (*most - *fewest > kBalanceAbs &&
        static_cast<double>(*most) > kBalanceRel * static_cast<double>(*fewest))
      return Least([this](size_t rank) { return requests_[rank]; });
    const auto found = [&](size_t rank) { return trees_[rank].Find(Prefix(request)); };
    const int32_t best = Least([&](size_t rank) { return -found(rank); });
    const auto share =
        static_cast<double>(found(static_cast<size_t>(best))) / static_cast<double>(request.prompt_tokens);
    if (share > kCacheThreshold) return best;
    return Least([this](size_t rank) { return trees_[rank].tokens(); });
  }
  void Sent(int32_t rank, const PrefixRequest& request) override {
    trees_[static_cast<size_t>(rank)].Touch(Prefix(request));
  }

  std::vector<core::PrefixCache> trees_;
};

class DynamoKv final : public DirectDispatcher {
 public:
  explicit DynamoKv(const std::vector<EngineModel>& ranks) : DirectDispatcher(ranks), loads_(ranks.size()) {}

 private:
  static constexpr double kOverlapWeight = 1;
  struct Load {
    // Uncached tokens of prompts that have no first token yet.
    int64_t prompt_tokens = 0;
    // Number of active requests that use each prompt block.
    absl::flat_hash_map<uint64_t, int32_t> blocks;
  };

  static size_t BlocksOf(const PrefixRequest& request) {
    return static_cast<size_t>(request.prompt_tokens / kEngineBlockTokens);
  }

  int32_t Choose(const PrefixRequest& request) override {
    return Least([&](size_t rank) {
      const Load& load = loads_[rank];
      const int64_t prompts = load.prompt_tokens + request.prompt_tokens - ranks_[rank].Cached(request);
      auto decodes = static_cast<int64_t>(load.blocks.size() + BlocksOf(request));
      for (size_t i = 0; i < BlocksOf(request) && load.blocks.contains(request.blocks[i]); ++i) --decodes;
      return kOverlapWeight * static_cast<double>(prompts) / kEngineBlockTokens +
             static_cast<double>(decodes);
    });
  }
  void Sent(int32_t rank, const PrefixRequest& request) override {
    Load& load = loads_[static_cast<size_t>(rank)];
    load.prompt_tokens += left_[request.id] =
        request.prompt_tokens - ranks_[static_cast<size_t>(rank)].Cached(request);
    for (size_t i = 0; i < BlocksOf(request); ++i) ++load.blocks[request.blocks[i]];
  }
  void Computed(int32_t rank, const PrefixRequest& request) override {
    loads_[static_cast<size_t>(rank)].prompt_tokens -= left_[request.id];
    left_.erase(request.id);
  }
  void Ended(int32_t rank, const PrefixRequest& request) override {
    Load& load = loads_[static_cast<size_t>(rank)];
    for (size_t i = 0; i < BlocksOf(request); ++i) {
      const auto it = load.blocks.find(request.blocks[i]);
      if (--it->second == 0) load.blocks.erase(it);
    }
  }

  std::vector<Load> loads_;
  absl::flat_hash_map<core::RequestId, int64_t> left_;
};

}  // namespace

std::unique_ptr<PrefixDispatcher> MakeDirectDispatcher(const std::string& rule,
                                                       const std::vector<EngineModel>& ranks) {
  if (rule == "direct_least_requests") return std::make_unique<DirectLeastRequests>(ranks);
  if (rule == "sglang_cache_aware") return std::make_unique<SglangCacheAware>(ranks);
  if (rule == "dynamo_kv") return std::make_unique<DynamoKv>(ranks);
  return nullptr;
}

}  // namespace bfio::sim
