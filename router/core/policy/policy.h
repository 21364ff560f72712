// A policy decides which waiting request goes to which worker, now. The one interface of all rules, so that
// the scheduler and tests drive them alike.
//
// Contract of Decide, for every policy:
//   - each waiting index is used at most once;
//   - worker g gets at most free_slots requests, and either the sum of their kv_reserve_tokens is at most
//     free_kv_tokens, or they fit by Snapshot::kv;
//   - work conservation: no request is left waiting while some worker could still take it (slot and KV). When
//     KV does not bind, exactly U = min(|waiting|, sum of free slots) requests are assigned (BF-IO paper,
//     section 3). A worker that is held for a request (scheduler/stages.h) shows no free slot. Exceptions:
//     policies that meter prompts let requests wait for a rank that has no prompt to compute, and least_work
//     lets them wait for a worker that has their prefix.
// Deterministic: the same snapshots in the same order give the same plans, unless PolicyOptions::stop ends a
// decision; randomness comes from PolicyOptions::seed.
// Threads: a policy belongs to the thread that drives the scheduler. No I/O, no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/core/model/snapshot.h"
#include "router/core/model/stop_signal.h"

namespace bfio::core {

class Policy {
 public:
  virtual ~Policy() = default;

  // The name under which it is registered.
  virtual absl::string_view name() const = 0;

  // H: how many steps ahead Snapshot::outlook should look; the scheduler projects no further.
  virtual int32_t horizon() const { return 0; }

  // Its rules of placement; Snapshot::rule selects one of them, and the scheduler fills Snapshot::far for a
  // rule that looks ahead. The first is used until step times are known.
  virtual absl::Span<const PlacementRule> placement_rules() const { return {}; }

  // It reads Snapshot::prefixes.
  virtual bool uses_prefixes() const { return false; }

  // It sets Decision::level_s where Snapshot::prefill is set, and is therefore called even if no request
  // waits.
  virtual bool meters_prompts() const { return false; }

  // REQUIRES: `decision` is cleared.
  virtual void Decide(const Snapshot& snapshot, Decision& decision) = 0;
};

// Bounds of PolicyOptions::wait_ratio. No rule that fills all slots could keep a ratio below 1; a ratio of
// 100 has the effect of no bound.
inline constexpr double kLeastWaitRatio = 1, kMostWaitRatio = 100;

// Settings of all policies; each ignores those that do not concern it.
struct PolicyOptions {
  // Seed of the policy's own random stream (power_of_two). Give routers that run side by side
  // different seeds; otherwise they draw the same workers.
  uint64_t seed = 1;
  // H, steps of lookahead.
  int32_t horizon = 0;
  // bf_io: "paper" (J of the BF-IO paper) or "square" (squared deviations of the loads, less weights of age).
  std::string objective = "square";
  // bf_io: weight of a step ahead relative to the one before it, in (0, 1]; 1 in the paper's J.
  double discount = 1;
  // bf_io_auto: where slots are short, the 99th percentile of waits over that of a first-come rule. A larger
  // ratio improves balance, since more requests may be passed over.
  double wait_ratio = 1.15;
  // bf_io, bf_io_auto, least_work: called while they search, about every thousand evaluations. While it
  // returns false, it does not affect the plans.
  StopSignal stop;
};

// What MakePolicy needs: name and settings.
struct PolicySetting {
  std::string name;
  PolicyOptions options;
};

struct PolicyInfo {
  absl::string_view name;
  // One sentence for --help.
  absl::string_view summary;
};

// All registered policies, in the order in which --help lists them.
const std::vector<PolicyInfo>& RegisteredPolicies();

// INVALID_ARGUMENT, with the known policies or the wrong setting in the message, when it cannot be made.
absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(absl::string_view name, const PolicyOptions& options);

}  // namespace bfio::core
