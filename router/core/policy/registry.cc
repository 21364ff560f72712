#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "router/core/policy/bf_io/bf_io.h"
#include "router/core/policy/bf_io/options.h"
#include "router/core/policy/fcfs/fcfs.h"
#include "router/core/policy/least_requests/least_requests.h"
#include "router/core/policy/least_tokens/least_tokens.h"
#include "router/core/policy/lpt/lpt.h"
#include "router/core/policy/policy.h"
#include "router/core/policy/power_of_two/power_of_two.h"
#include "router/core/policy/round_robin/round_robin.h"

namespace bfio::core {
namespace {

using MadePolicy = absl::StatusOr<std::unique_ptr<Policy>>;

template <class P>
MadePolicy Plain(const PolicyOptions&) {
  return std::make_unique<P>();
}

MadePolicy PowerOfTwo(const PolicyOptions& options) {
  return std::make_unique<PowerOfTwoPolicy>(options.seed);
}

MadePolicy BfIo(const PolicyOptions& options) {
  absl::StatusOr<SolverSettings> settings = BfIoSettings(options);
  if (!settings.ok()) return settings.status();
  return std::make_unique<BfIoPolicy>(*settings);
}

struct Registered {
  PolicyInfo info;
  MadePolicy (*make)(const PolicyOptions&);
};

constexpr Registered kPolicies[] = {
    {{"bf_io", "integer program over the whole waiting pool: which requests, and where (--objective)"}, BfIo},
    {{"fcfs", "oldest first, to the worker with most free slots"}, Plain<FcfsPolicy>},
    {{"round_robin", "oldest first, to the workers in turn"}, Plain<RoundRobinPolicy>},
    {{"least_requests", "oldest first, to the worker with fewest requests"}, Plain<LeastRequestsPolicy>},
    {{"power_of_two", "oldest first, to the one of two random workers with fewer requests"}, PowerOfTwo},
    {{"least_tokens", "oldest first, to the worker with the smallest load"}, Plain<LeastTokensPolicy>},
    {{"lpt", "the oldest that fit, largest first, to the worker with the smallest load"}, Plain<LptPolicy>},
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
