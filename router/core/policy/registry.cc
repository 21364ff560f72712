#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "router/core/policy/balance_route/balance_route.h"
#include "router/core/policy/baselines/baselines.h"
#include "router/core/policy/bf_io/bf_io.h"
#include "router/core/policy/bf_io/options.h"
#include "router/core/policy/bf_io_auto/bf_io_auto.h"
#include "router/core/policy/fastest_free/fastest_free.h"
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

MadePolicy PowerOfTwo(const PolicyOptions& options) {
  return PowerOfD("power_of_two", 2, options.seed);
}

MadePolicy PowerOfMany(const PolicyOptions& options) {
  if (options.choices < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("power_of_d: choices ", options.choices, " must be at least 1"));
  }
  return PowerOfD("power_of_d", options.choices, options.seed);
}

MadePolicy Br0(const PolicyOptions&) {
  return std::make_unique<BalanceRoutePolicy>("br0", 0, /*overflow_weight=*/0);
}

MadePolicy BrH(const PolicyOptions& options) {
  if (options.horizon < 0 || options.horizon > kBrLongestHorizon) {
    return absl::InvalidArgumentError(
        absl::StrCat("br_h: horizon ", options.horizon, " must lie between 0 and ", kBrLongestHorizon));
  }
  return std::make_unique<BalanceRoutePolicy>("br_h", options.horizon, kBrHorizonOverflowWeight);
}

MadePolicy BfIo(const PolicyOptions& options) {
  absl::StatusOr<SolverSettings> settings = BfIoSettings(options);
  if (!settings.ok()) return settings.status();
  return std::make_unique<MeteredPolicy>(std::make_unique<BfIoPolicy>(
      *settings, options.horizon, options.discount, options.stop, options.gap_every));
}

MadePolicy LeastWork(const PolicyOptions& options) {
  return std::make_unique<LeastWorkPolicy>(options.stop);
}

MadePolicy MakeAuto(const PolicyOptions& options, absl::string_view name,
                    absl::Span<const PlacementRule> rules) {
  if (!(options.wait_ratio >= kLeastWaitRatio && options.wait_ratio <= kMostWaitRatio)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": wait_ratio ", options.wait_ratio,
                                                   " must lie between ", kLeastWaitRatio, " and ",
                                                   kMostWaitRatio));
  }
  return std::make_unique<MeteredPolicy>(std::make_unique<BfIoAutoPolicy>(options, name, rules));
}

MadePolicy BfIoAuto(const PolicyOptions& options) {
  return MakeAuto(options, "bf_io_auto", BfIoAutoPolicy::kRules);
}

constexpr PlacementRule kHeadroomRule[] = {PlacementRule::kHeadroom};
constexpr PlacementRule kHorizonRule[] = {PlacementRule::kHorizon};

MadePolicy BfIoHeadroom(const PolicyOptions& options) {
  return MakeAuto(options, "bf_io_headroom", kHeadroomRule);
}

MadePolicy BfIoHorizon(const PolicyOptions& options) {
  return MakeAuto(options, "bf_io_horizon", kHorizonRule);
}

template <FastestFreePolicy::Rule kRule>
MadePolicy AmongFree(const PolicyOptions& options) {
  return std::make_unique<FastestFreePolicy>(kRule, options.seed);
}

struct Registered {
  PolicyInfo info;
  MadePolicy (*make)(const PolicyOptions&);
};

constexpr Registered kPolicies[] = {
    {{"bf_io_auto",
      "bf_io with automatic weights: balances loads and keeps waiting times near those of fcfs"},
     BfIoAuto},
    {{"bf_io",
      "integer program over the whole waiting pool: chooses requests and their workers (--objective)"},
     BfIo},
    {{"bf_io_headroom", "bf_io_auto; below saturation it always keeps capacity free for large requests"},
     BfIoHeadroom},
    {{"bf_io_horizon",
      "bf_io_auto; below saturation it always places requests by the expected durations of future steps"},
     BfIoHorizon},
    {{"fcfs", "oldest first, to the worker with the most free slots"}, Baseline<Fcfs>},
    {{"fcfs_fill", "oldest first, to the first worker with free capacity"}, Baseline<FcfsFill>},
    {{"round_robin", "oldest first, to each worker in turn"}, Baseline<RoundRobin>},
    {{"least_requests", "oldest first, to the worker with the fewest requests"}, Baseline<LeastRequests>},
    {{"least_work", "oldest first, to the worker with the least work: uncached prompt tokens and requests"},
     LeastWork},
    {{"power_of_two", "oldest first, to the one of two random workers with fewer requests"}, PowerOfTwo},
    {{"power_of_d",
      "oldest first, to the one of 4 random workers with the fewest requests (bfio_sim: --choices)"},
     PowerOfMany},
    {{"least_tokens", "oldest first, to the worker with the smallest load"}, Baseline<LeastTokens>},
    {{"lpt", "the oldest that fit, largest first, to the worker with the smallest load"}, Baseline<Lpt>},
    {{"min_min", "smallest waiting request first, to the worker with the smallest load"}, Baseline<MinMin>},
    {{"max_min", "largest waiting request first, to the worker with the smallest load"}, Baseline<MaxMin>},
    {{"throttled", "oldest first, to the first worker that uses less than three quarters of its slots"},
     Baseline<Throttled>},
    {{"vllm", "vLLM's internal balancer: number of requests, and KV use on workers with waiting requests"},
     Plain<VllmPolicy>},
    {{"trtllm",
      "TensorRT-LLM's balancer: the oldest requests, longest first, to the worker with the fewest tokens; "
      "request counts are capped"},
     Plain<TrtllmPolicy>},
    {{"br0", "margin score in two stages, our interpretation of BalanceRoute without lookahead"}, Br0},
    {{"br_h", "br0 over --horizon steps of --lookahead"}, BrH},
    {{"jffc", "oldest first, to the fastest worker or chain with free capacity (default of --coupling=none)"},
     AmongFree<FastestFreePolicy::Rule::kJffc>},
    {{"sa_jsq", "oldest first, to the worker or chain with the fewest requests, among these the fastest"},
     AmongFree<FastestFreePolicy::Rule::kSaJsq>},
    {{"jiq", "oldest first, to a random idle worker or chain, otherwise to a random one with free capacity"},
     AmongFree<FastestFreePolicy::Rule::kJiq>},
};

}  // namespace

const std::vector<PolicyInfo>& RegisteredPolicies() {
  static const auto* const kInfos = [] {
    auto* infos = new std::vector<PolicyInfo>;
    for (const Registered& policy : kPolicies) infos->push_back(policy.info);
    return infos;
  }();
  return *kInfos;
}

absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(absl::string_view name, const PolicyOptions& options) {
  for (const Registered& policy : kPolicies) {
    if (policy.info.name == name) return policy.make(options);
  }
  std::string known;
  for (const Registered& policy : kPolicies)
    absl::StrAppend(&known, known.empty() ? "" : ", ", policy.info.name);
  return absl::InvalidArgumentError(absl::StrCat("policy '", name, "' is unknown, choose one of ", known));
}

}  // namespace bfio::core
