#include "tools/sim/network/network_check.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/scheduler/batch_scheduler.h"

namespace bfio::sim {
namespace {

template <typename... Parts>
absl::Status Refused(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// False for NaN.
bool Positive(double x) {
  return x > 0 && x < std::numeric_limits<double>::infinity();
}
bool NotNegative(double x) {
  return x >= 0 && x < std::numeric_limits<double>::infinity();
}

absl::Status CheckLaw(const TokenLaw& law, const char* what) {
  if (NotNegative(law.mean) && law.mean <= kMostMeanTokens) return absl::OkStatus();
  return Refused(what, ".mean is ", law.mean, ": not in 0 .. ", kMostMeanTokens);
}

absl::Status CheckCall(const CallType& call, int32_t index, int32_t engines) {
  if (call.engine < 0 || call.choices < 1 || call.engine >= engines || call.choices > engines - call.engine) {
    return Refused("engine ", call.engine, " with ", call.choices, " choices: there are engines 0 .. ",
                   engines - 1);
  }
  for (size_t i = 0; i < call.after.size(); ++i) {
    const int32_t before = call.after[i];
    if (before < 0 || before >= index) return Refused("after ", before, ": not an earlier call");
    if (std::count(call.after.begin(), call.after.end(), before) > 1)
      return Refused("after ", before, " twice");
  }
  const absl::Status prefill = CheckLaw(call.prefill, "prefill");
  return prefill.ok() ? CheckLaw(call.decode, "decode") : prefill;
}

absl::Status CheckType(const AgentType& type, int32_t engines, double horizon) {
  if (!NotNegative(type.rate)) return Refused("rate is ", type.rate);
  if (type.rate * horizon > kMostEvents) {
    return Refused("rate is ", type.rate, ": more than ", kMostEvents, " arrivals by the horizon");
  }
  if (type.calls.empty()) return Refused("no calls: such an agent would never end");
  for (size_t i = 0; i < type.calls.size(); ++i) {
    const absl::Status call = CheckCall(type.calls[i], static_cast<int32_t>(i), engines);
    if (!call.ok()) return Refused("call ", i, ": ", call.message());
  }
  return absl::OkStatus();
}

bool ManyLanes(CallOrder order) {
  return order == CallOrder::kExitFirst || order == CallOrder::kEntryFirst;
}

absl::Status CheckOptions(const NetworkOptions& options) {
  const absl::StatusOr<worker::BatchScheduler> scheduler = worker::BatchScheduler::Create(options.scheduler);
  if (!scheduler.ok()) return scheduler.status();
  if (ManyLanes(options.order) && !scheduler->work_conserving()) {
    return Refused("scheduler ", options.scheduler, " with order ", CallOrderName(options.order),
                   ": what a lane leaves of a batch is for the next one, and this scheduler leaves what it "
                   "could use");
  }
  if (options.slots < 0) return Refused("slots is ", options.slots);
  if (!Positive(options.horizon)) return Refused("horizon is ", options.horizon);
  if (!Positive(options.sample_every)) return Refused("sample_every is ", options.sample_every);
  if (options.horizon / options.sample_every > kMostEvents) {
    return Refused("horizon / sample_every is ", options.horizon / options.sample_every, ": more than ",
                   kMostEvents);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckNetwork(const Network& network, const NetworkOptions& options) {
  const absl::Status of_options = CheckOptions(options);
  if (!of_options.ok()) return of_options;
  if (network.engines < 1 || network.engines > kMostEngines)
    return Refused("engines is ", network.engines, ": not in 1 .. ", kMostEngines);
  if (network.token_budget < 1 || network.token_budget > std::numeric_limits<int32_t>::max())
    return Refused("token_budget is ", network.token_budget, ": not in 1 .. 2^31 - 1");
  const double full = network.BatchTime(network.token_budget);
  if (!Positive(full)) return Refused("batch_time of ", network.token_budget, " tokens is ", full);
  if (options.horizon / full > kMostEvents)
    return Refused("horizon is ", options.horizon / full, " full batches: more than ", kMostEvents);
  for (const AgentType& type : network.types) {
    const absl::Status checked = CheckType(type, network.engines, options.horizon);
    if (!checked.ok()) return Refused("type '", type.name, "': ", checked.message());
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
