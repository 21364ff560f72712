// The router's core in front of simulated engines: the same core::Cluster, with the events that a router
// gets. Three kinds of engines:
//
//   kOwn      bfio's workers behind a barrier. A plan is for one step: it has the prompts that begin in it,
//             and the level up to which ranks compute prompts. A pipelined plan is made while the step before
//             its own runs, as late as the router makes it (core::PlanDelay). If that step ends first, ranks
//             go on with the last level.
//   kMetered  engines that take requests at any time and compute prompts up to a level (vLLM with bfio's
//             scheduler class).
//   kPlain    engines that take requests at any time and fill their token budget.
//
// Threads: one.
#ifndef BFIO_TOOLS_SIM_RANK_CLUSTER_DISPATCHER_H_
#define BFIO_TOOLS_SIM_RANK_CLUSTER_DISPATCHER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "router/core/prefix/prefix_caches.h"
#include "router/core/scheduler/cluster.h"
#include "router/core/scheduler/plan_delay.h"
#include "tools/sim/rank/engine_run.h"

namespace bfio::sim {

class ClusterDispatcher final : public EngineDispatcher {
 public:
  enum class Kind { kOwn, kMetered, kPlain };
  struct Options {
    core::PolicySetting policy;
    Kind kind = Kind::kPlain;
    // Tokens of a rank's step.
    int64_t token_budget = 2048;
    // KV tokens of a rank; 0: no limit.
    int64_t kv_tokens = 0;
    // The router assumes that ranks cache prefixes.
    bool prefix_caches = false;
    // Decisions are made while the next step runs.
    bool pipelined = false;
    // Objective of every request for its first token, in seconds; 0: none.
    double ttft_objective_s = 0;
    // As the router knows it, until SetCost.
    BatchCost cost;
  };
  // INVALID_ARGUMENT: no such policy. The others outlive the dispatcher.
  static absl::StatusOr<std::unique_ptr<ClusterDispatcher>> Make(const Options& options, ServeGroup* group,
                                                                 const std::vector<ServeRequest>* requests);

  void Arrived(ServeRequestIndex request) override;
  void Stepped(int32_t stepper, const ServeStep& step, double now_s) override;
  void Decide(double now_s) override;
  double NextDecision() const override;
  bool Order(int32_t stepper, std::vector<RankOrder>& orders) override;
  bool ahead() const override { return options_.pipelined; }
  int64_t waiting() const override { return cluster_.waiting(); }
  void SetCost(const BatchCost& cost) override;

  // Prompt tokens expected in the ranks' caches, and how many of them were there.
  int64_t expected_tokens() const { return expected_tokens_; }
  int64_t found_tokens() const { return found_tokens_; }

 private:
  // A report with the memory of its spans.
  struct RankReport {
    int32_t rank = 0;
    core::StepReport report;
    std::vector<core::RequestId> finished;
    std::vector<core::CachedPrompt> cached;
  };

  ClusterDispatcher(const Options& options, ServeGroup* group, const std::vector<ServeRequest>* requests);
  bool own() const { return options_.kind == Kind::kOwn; }
  const ServeRequest& Of(ServeRequestIndex index) const { return (*requests_)[index]; }
  core::PrefillReport PromptsOf(int32_t rank) const;
  // KV tokens that requests can hold beyond the memory by sharing blocks, at the present ratio of sharing.
  int64_t Shared(int32_t rank) const;
  void TakeFirstToken(ServeRequestIndex index, RankReport& report);
  void MakePlans();
  void Place(const std::vector<core::Placement>& placements);

  const Options options_;
  ServeGroup* const group_;
  const std::vector<ServeRequest>* const requests_;
  core::Cluster cluster_;
  // By rank: the number of its steps, and of the last plan that it has applied.
  std::vector<int64_t> steps_, applied_;
  // Reports that the cluster has not got.
  std::vector<RankReport> reports_;
  // Own ranks: plans to come.
  std::deque<core::Plan> plans_;
  std::optional<double> level_s_;
  core::PlanDelay plan_delay_;
  // The duration of the last step, and the times of the next plan and of the last call of Decide.
  double step_s_ = 0, plan_at_s_ = 0, decided_s_ = 0;
  // A copy of the core's model of the ranks' caches, which the core does not expose; by request, what it
  // expected there.
  core::PrefixCaches expectations_;
  absl::flat_hash_map<ServeRequestIndex, int64_t> expected_;
  int64_t expected_tokens_ = 0, found_tokens_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RANK_CLUSTER_DISPATCHER_H_
