#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/rng.h"
#include "research/chains/dispatcher.h"

namespace bfio::core {
namespace {

using Chains = absl::Span<const ChainView>;

// A random chain for which `fits` holds, all equally likely, or kCentralQueue.
template <class Fits>
int32_t AtRandom(Chains chains, Rng& rng, const Fits& fits) {
  const auto many = static_cast<uint64_t>(std::count_if(chains.begin(), chains.end(), fits));
  if (many == 0) return kCentralQueue;
  uint64_t left = rng.Below(many);
  for (size_t k = 0;; ++k) {
    if (fits(chains[k]) && left-- == 0) return static_cast<int32_t>(k);
  }
}

class Jffc final : public ChainDispatcher {
 public:
  int32_t OnArrival(Chains chains) override {
    for (size_t k = 0; k < chains.size(); ++k) {
      if (chains[k].free()) return static_cast<int32_t>(k);
    }
    return kCentralQueue;
  }
};

class SpeedAwareJsq final : public ChainDispatcher {
 public:
  int32_t OnArrival(Chains chains) override {
    int32_t best = kCentralQueue;
    for (size_t k = 0; k < chains.size(); ++k) {
      if (chains[k].free() && (best == kCentralQueue || chains[k].jobs < chains[best].jobs))
        best = static_cast<int32_t>(k);
    }
    return best;
  }
};

class SmallestExpectedDelay final : public ChainDispatcher {
 public:
  int32_t OnArrival(Chains chains) override {
    int32_t best = 0;
    for (size_t k = 1; k < chains.size(); ++k) {
      if (Delay(chains[k]) < Delay(chains[best])) best = static_cast<int32_t>(k);
    }
    return best;
  }

 private:
  static double Delay(const ChainView& chain) {
    const auto ahead = static_cast<double>(std::max<int64_t>(0, chain.jobs - chain.capacity + 1));
    return (1 + ahead / static_cast<double>(chain.capacity)) / chain.rate;
  }
};

class JoinShortestQueue final : public ChainDispatcher {
 public:
  explicit JoinShortestQueue(uint64_t seed) : rng_(seed) {}
  int32_t OnArrival(Chains chains) override {
    int64_t fewest = chains[0].jobs;
    for (const ChainView& chain : chains) fewest = std::min(fewest, chain.jobs);
    return AtRandom(chains, rng_, [&](const ChainView& chain) { return chain.jobs == fewest; });
  }

 private:
  Rng rng_;
};

class JoinIdleQueue final : public ChainDispatcher {
 public:
  explicit JoinIdleQueue(uint64_t seed) : rng_(seed) {}
  int32_t OnArrival(Chains chains) override {
    const int32_t idle = AtRandom(chains, rng_, [](const ChainView& chain) { return chain.jobs == 0; });
    return idle != kCentralQueue
               ? idle
               : AtRandom(chains, rng_, [](const ChainView& chain) { return chain.free(); });
  }

 private:
  Rng rng_;
};

}  // namespace

const std::vector<std::string>& ChainDispatcherNames() {
  static const auto* const kNames = new std::vector<std::string>{"jffc", "sa_jsq", "sed", "jsq", "jiq"};
  return *kNames;
}

absl::StatusOr<std::unique_ptr<ChainDispatcher>> MakeChainDispatcher(absl::string_view name, uint64_t seed) {
  if (name == "jffc") return std::make_unique<Jffc>();
  if (name == "sa_jsq") return std::make_unique<SpeedAwareJsq>();
  if (name == "sed") return std::make_unique<SmallestExpectedDelay>();
  if (name == "jsq") return std::make_unique<JoinShortestQueue>(seed);
  if (name == "jiq") return std::make_unique<JoinIdleQueue>(seed);
  return absl::InvalidArgumentError(absl::StrCat("rule '", name, "' is unknown, choose one of ",
                                                 absl::StrJoin(ChainDispatcherNames(), ", ")));
}

}  // namespace bfio::core
