// The router's core in front of simulated engines: the same core::Cluster, with the events that a router
// gets. Kinds of engines:
//
//   kDecode   the BF-IO paper's workers behind a barrier: a prompt takes one step, whole. A plan is for one
//             step. Pipelined, it is for one step later.
//   kOwn      bfio's workers behind a barrier. A plan also has the level up to which ranks compute prompts. A
//             pipelined plan is made while the step before its own runs, as late as the router makes it
//             (core::PlanDelay). If that step ends first, ranks go on with the last level.
//   kMetered  engines that take requests at any time and compute prompts up to a level (vLLM with bfio's
//             scheduler class).
//   kPlain    engines that take requests at any time and fill their token budget.
//
// The group's prefill ranks are a second group of the cluster, in front of engines that take requests at any
// time. A hand-off that has waited too long for a rank is dropped, and its prompt is computed again.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "router/core/model/slot_credit.h"
#include "router/core/prefix/prefix_caches.h"
#include "router/core/scheduler/cluster.h"
#include "router/core/scheduler/plan_delay.h"
#include "tools/sim/rank/engine_run.h"

namespace bfio::sim {

// KV tokens without a limit: large enough that it never binds, small enough that sums do not overflow.
inline constexpr int64_t kUnlimitedKv = std::numeric_limits<int64_t>::max() / 4;

class ClusterDispatcher final : public EngineDispatcher {
 public:
  enum class Kind { kDecode, kOwn, kMetered, kPlain };
  struct Options {
    core::PolicySetting policy;
    Kind kind = Kind::kPlain;
    // Tokens of a rank's step.
    int64_t token_budget = 2048, prefill_budget = 2048;
    // Requests do not wait for prefill ranks: each goes to the one with the fewest tokens when it arrives.
    bool prefill_on_arrival = false;
    // Prompts that a decode rank computes sooner itself are not handed over.
    bool keeps_prompts = false;
    // How long a hand-off may wait.
    double hand_off_age_s = kNever;
    // Its plan mode and report delay also apply to engines without plans.
    core::SchedulerOptions scheduler;
    // Every rank; without slots, it has those of the group.
    core::WorkerSpec worker;
    // Replaces `worker`, by rank.
    std::vector<core::WorkerSpec> workers = {};
    // Objective of every request for its first token, in seconds; 0: none.
    double ttft_objective_s = 0;
    // As the router knows it, until SetCost.
    std::optional<GroupCost> cost;
    // Sets what the router knows about a request beside its lengths.
    std::function<void(const ServeRequest&, core::RequestSpec&)> describe = {};
    // Hints of a rank's requests after a step.
    std::function<std::vector<core::CompletionHint>(int32_t rank)> hints = {};
  };
  // INVALID_ARGUMENT: no such policy. The others outlive the dispatcher.
  static absl::StatusOr<std::unique_ptr<ClusterDispatcher>> Make(
      const Options& options, ServeGroup* group, const std::vector<ServeRequest>* requests,
      std::unique_ptr<core::Lookahead> lookahead = nullptr);

  void Arrived(ServeRequestIndex request) override;
  void Stepped(int32_t stepper, const ServeStep& step, double now_s) override;
  absl::Status Decide(double now_s) override;
  double NextDecision() const override;
  bool Order(int32_t stepper, std::vector<RankOrder>& orders) override;
  bool ahead() const override { return pipelined() && !barrier(); }
  int64_t waiting() const override { return cluster_.waiting(); }
  void SetCost(const GroupCost& cost) override;

  const core::Scheduler& scheduler() const { return *cluster_.group(0); }
  // Prompt tokens expected in the ranks' caches, and how many of them were there.
  int64_t expected_tokens() const { return expected_tokens_; }
  int64_t found_tokens() const { return found_tokens_; }
  // Hand-offs that were dropped.
  int64_t expired() const { return expired_; }

 private:
  // A report with the memory of its spans.
  struct RankReport {
    int32_t rank = 0;
    core::StepReport report;
    std::vector<core::RequestId> finished, preempted;
    std::vector<core::CachedPrompt> cached;
    std::vector<core::CompletionHint> hints;
  };
  // Those of one step.
  struct StepReports {
    std::vector<RankReport> ranks;
    // Requests that return to the pool.
    std::vector<core::RequestSpec> returned;
    double step_s = 0;
  };

  ClusterDispatcher(const Options& options, ServeGroup* group, const std::vector<ServeRequest>* requests,
                    std::unique_ptr<core::Lookahead> lookahead);
  // It makes plans for steps.
  bool barrier() const { return options_.kind == Kind::kDecode || options_.kind == Kind::kOwn; }
  bool pipelined() const { return options_.scheduler.plan_mode == core::PlanMode::kPipelined; }
  const ServeRequest& Of(ServeRequestIndex index) const { return (*requests_)[index]; }
  // `decodes`: the rank that decodes it computes its prompt, too.
  core::RequestSpec SpecOf(const ServeRequest& request, bool decodes = false) const;
  core::GroupIndex GroupOf(int32_t rank) const { return rank < group_->decode_ranks() ? 0 : 1; }
  // The rank that is the group's worker 0.
  int32_t FirstRankOf(core::GroupIndex group) const { return group == 0 ? 0 : group_->decode_ranks(); }
  // The group has prefill ranks.
  bool prefills() const { return std::ssize(group_->ranks()) > group_->decode_ranks(); }
  void OpenGroup(core::GroupIndex index, core::GroupKind kind, uint32_t lacks);
  void BindForPrefill(ServeRequestIndex index);
  void DropExpired(double now_s);
  void Deliver(StepReports& reports, double now_s);
  core::PrefillReport PromptsOf(int32_t rank) const;
  void Place(const std::vector<core::Placement>& placements, int32_t first_rank = 0);

  const Options options_;
  ServeGroup* const group_;
  const std::vector<ServeRequest>* const requests_;
  core::Cluster cluster_;
  // Requests that have not ended.
  absl::flat_hash_map<core::RequestId, ServeRequestIndex> indices_;
  // Of requests on prefill ranks or handed over: the steps that they waited for a prefill rank.
  absl::flat_hash_map<core::RequestId, int64_t> waited_;
  // Hand-offs in the order in which they came, each with its time.
  std::deque<std::pair<double, ServeRequestIndex>> hand_offs_;
  int64_t expired_ = 0;
  // By rank: the number of its steps, and of the last plan that it has applied.
  std::vector<int64_t> steps_, applied_;
  std::vector<core::SlotCredit> credits_;
  // Reports that the cluster has not got.
  std::deque<StepReports> reports_;
  // Of steps: plans to come.
  std::deque<core::Plan> plans_;
  std::optional<double> level_s_;
  core::PlanDelay plan_delay_;
  absl::Status status_;
  // The times of the next plan and of the last call of Decide.
  double plan_at_s_ = 0, decided_s_ = 0;
  // A copy of the core's model of the ranks' caches, which the core does not expose; by request, what it
  // expected there.
  core::PrefixCaches expectations_;
  absl::flat_hash_map<ServeRequestIndex, int64_t> expected_;
  int64_t expected_tokens_ = 0, found_tokens_ = 0;
};

}  // namespace bfio::sim
