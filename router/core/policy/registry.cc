#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "router/core/policy/balance_route/balance_route.h"
#include "router/core/policy/baselines/baselines.h"
#include "router/core/policy/bf_io/bf_io.h"
#include "router/core/policy/bf_io_auto/bf_io_auto.h"
#include "router/core/policy/fair_order.h"
#include "router/core/policy/least_work/least_work.h"
#include "router/core/policy/metered/metered.h"
#include "router/core/policy/policy.h"
#include "router/core/policy/trtllm/trtllm.h"
#include "router/core/policy/vllm/vllm.h"

namespace bfio::core {
namespace {

using MadePolicy = absl::StatusOr<std::unique_ptr<Policy>>;

template <class P>
MadePolicy Plain(const PolicyOptions&) {
  return std::make_unique<P>();
}

template <std::unique_ptr<Policy> (*kMake)()>
MadePolicy Baseline(const PolicyOptions&) {
  return kMake();
}

MadePolicy FairJffc(const PolicyOptions&) {
  return std::make_unique<FairPolicy>(Jffc());
}

MadePolicy TwoChoices(const PolicyOptions& options) {
  return PowerOfTwo(options.seed);
}

MadePolicy Br0(const PolicyOptions&) {
  return std::make_unique<BalanceRoutePolicy>("br0", 0);
}

MadePolicy BrH(const PolicyOptions& options) {
  if (options.horizon < 0 || options.horizon > kBrLongestHorizon) {
    return absl::InvalidArgumentError(
        absl::StrCat("br_h: horizon ", options.horizon, " must lie between 0 and ", kBrLongestHorizon));
  }
  return std::make_unique<BalanceRoutePolicy>("br_h", options.horizon > 0 ? options.horizon : kBrHorizon);
}

MadePolicy BfIo(const PolicyOptions& options) {
  absl::StatusOr<SolverSettings> settings = BfIoSettings(options);
  if (!settings.ok()) return settings.status();
  return std::make_unique<MeteredPolicy>(
      std::make_unique<BfIoPolicy>(*settings, options.horizon, options.discount, options.stop));
}

MadePolicy LeastWork(const PolicyOptions& options) {
  return std::make_unique<FairPolicy>(std::make_unique<LeastWorkPolicy>(options.stop));
}

MadePolicy BfIoAuto(const PolicyOptions& options) {
  if (!(options.wait_ratio >= kLeastWaitRatio && options.wait_ratio <= kMostWaitRatio)) {
    return absl::InvalidArgumentError(absl::StrCat("bf_io_auto: wait_ratio ", options.wait_ratio,
                                                   " must lie between ", kLeastWaitRatio, " and ",
                                                   kMostWaitRatio));
  }
  return std::make_unique<MeteredPolicy>(std::make_unique<BfIoAutoPolicy>(options));
}

struct PolicyEntry {
  PolicyInfo info;
  MadePolicy (*make)(const PolicyOptions&);
};

constexpr PolicyEntry kPolicies[] = {
    {{"bf_io_auto",
      "bf_io with automatic weights: balances loads and keeps waiting times near those of fcfs"},
     BfIoAuto},
    {{"bf_io",
      "integer program over the whole waiting pool: chooses requests and their workers (setting: "
      "objective)"},
     BfIo},
    {{"fcfs", "oldest first, to the worker with the most free slots"}, Baseline<Fcfs>},
    {{"round_robin", "oldest first, to each worker in turn"}, Baseline<RoundRobin>},
    {{"least_requests", "oldest first, to the worker with the fewest requests"}, Baseline<LeastRequests>},
    {{"least_work",
      "least left to compute first, to the worker where it adds least to the times of all requests"},
     LeastWork},
    {{"power_of_two", "oldest first, to the one of two random workers with fewer requests"}, TwoChoices},
    {{"least_tokens", "oldest first, to the worker with the smallest load"}, Baseline<LeastTokens>},
    {{"lpt", "the oldest that fit, largest first, to the worker with the smallest load"}, Baseline<Lpt>},
    {{"vllm", "vLLM's internal balancer: number of requests, and KV use on workers with waiting requests"},
     Plain<VllmPolicy>},
    {{"trtllm",
      "TensorRT-LLM's balancer: the oldest requests, longest first, to the worker with the fewest tokens; "
      "request counts are capped"},
     Plain<TrtllmPolicy>},
    {{"br0", "margin score in two stages: BalanceRoute without lookahead"}, Br0},
    {{"br_h", "br0 over the steps of --lookahead that its setting horizon names (0: 80)"}, BrH},
    {{"jffc", "oldest first, to the fastest worker or chain with free capacity (default of --coupling=none)"},
     FairJffc},
};

}  // namespace

const std::vector<PolicyInfo>& RegisteredPolicies() {
  static const auto* const kInfos = [] {
    auto* infos = new std::vector<PolicyInfo>;
    for (const PolicyEntry& policy : kPolicies) infos->push_back(policy.info);
    return infos;
  }();
  return *kInfos;
}

absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(absl::string_view name, const PolicyOptions& options) {
  for (const PolicyEntry& policy : kPolicies) {
    if (policy.info.name == name) return policy.make(options);
  }
  std::string known;
  for (const PolicyEntry& policy : kPolicies)
    absl::StrAppend(&known, known.empty() ? "" : ", ", policy.info.name);
  return absl::InvalidArgumentError(absl::StrCat("policy '", name, "' is unknown, choose one of ", known));
}

}  // namespace bfio::core
