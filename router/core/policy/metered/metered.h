// A policy whose ranks compute prompts up to a common step time.
//
// Purpose: a decorator around a policy that places requests. Where the snapshot has the prompts that ranks
// still compute (Snapshot::prefill), PlanPrefill (router/core/prefill) decides how many prompts each rank
// takes, which ones, also by prefix caches, and up to which time ranks fill the step. Its bindings are the
// decision as long as they leave slots, however many requests wait: ranks are then busy with prompts, and
// prompts of other lengths would make their steps unequal. Once they take all slots, the other policy chooses
// which request goes where; each rank offers it as many slots as it has bindings. For ranks that fill their
// steps themselves (PrefillView::releases_only) there is no level.
// Classes of priority are strict. Without Snapshot::prefill the other policy decides alone.
//
// Threads: as Policy. Deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/policy.h"
#include "router/core/prefill/prefill_view.h"

namespace bfio::core {

class MeteredPolicy final : public Policy {
 public:
  explicit MeteredPolicy(std::unique_ptr<Policy> placing) : placing_(std::move(placing)) {}

  absl::string_view name() const override { return placing_->name(); }
  int32_t horizon() const override { return placing_->horizon(); }
  absl::Span<const PlacementRule> placement_rules() const override { return placing_->placement_rules(); }
  bool uses_prefixes() const override { return true; }
  bool meters_prompts() const override { return true; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  // Fills bindings_; returns the level.
  double Bind(const Snapshot& snapshot);
  // Binds the requests of one class of priority, from `first` to `end`, and returns the level. Adds the
  // bindings to bindings_ and ranks_.
  double BindClass(const Snapshot& snapshot, size_t first, size_t end);
  PrefillDecision Plan(const Snapshot& snapshot, int32_t priority) const;
  // False: the request fits no rank's memory now and is passed over.
  bool FitsSomewhere(const WaitingView& request);
  // Fills WaitingPrompt::cached of the first prompts of waiting_, which are the requests `waiting` in the
  // order order_.
  void FindCached(const Snapshot& snapshot, absl::Span<const WaitingView> waiting);
  void PlaceBindings(const Snapshot& snapshot, Decision& decision);
  // Places requests by the other policy, with as many slots as there are bindings.
  void PlaceWithin(const Snapshot& snapshot, Decision& decision);

  const std::unique_ptr<Policy> placing_;
  // The bindings of the present decision.
  std::vector<Assignment> bindings_;
  std::vector<PrefillRank> ranks_;
  // Of the requests for which there was room: since which step.
  absl::flat_hash_map<RequestId, int64_t> held_since_, still_held_;
  // Scratch.
  std::vector<WaitingPrompt> waiting_;
  std::vector<double> urgency_;
  // For each of waiting_, the prompts that may be bound: its index within its class.
  std::vector<int32_t> order_;
  // Memory of WaitingPrompt::cached.
  std::vector<int64_t> cached_;
  std::vector<WorkerView> views_;
  FreeCapacity free_;
  KvRefusals refusals_;
};

}  // namespace bfio::core
