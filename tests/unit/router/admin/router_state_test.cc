#include "router/admin/router_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "router/admin/state_metrics.h"
#include "tests/testing/from_text.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

WorkerView Worker(const std::string& id, std::optional<int32_t> rank) {
  WorkerView worker;
  worker.member.worker_id = id;
  worker.member.engine = "sim";
  worker.member.slots = 8;
  worker.member.kv_tokens = 1000;
  if (!rank) return worker;
  worker.member.rank = *rank;
  worker.straggler_steps = 4;
  core::Scheduler::WorkerAccount account = {
      .active = 2, .inflight = 1, .load_tokens = 50, .reserved_kv_tokens = 400};
  account.spec.time_per_token = 1.5;
  account.spec.time_offset = 20;
  account.prefill = core::PrefillReport{512, {{1, 10}, {2, 20}}};
  worker.account = account;
  return worker;
}

GroupView ViewOfGroup(core::GroupIndex index, const std::string& name, uint64_t epoch) {
  GroupView group = {.index = index, .name = name, .epoch = epoch, .ready = true};
  group.steps.steps = 10;
  group.steps.barrier_wait_s = 0.5;
  group.steps.decide_max_s = 0.125 * static_cast<double>(epoch);
  group.scheduler.late_plans = 1;
  group.distributions.local_s.Add(0.01);
  return group;
}

// The sum of a distribution's counts; clears it.
uint64_t Take(v1::Distribution* distribution) {
  uint64_t sum = 0;
  for (const uint64_t count : distribution->counts()) sum += count;
  distribution->Clear();
  return sum;
}

// Two groups, a worker that has joined none, one with measurements, and a group that is gone.
TEST(RouterStateTest, EverythingIsShown) {
  RouterState state = {.timestamp = absl::FromUnixMillis(1'500),
                       .uptime = absl::Seconds(90),
                       .version = "1.2.3",
                       .policy = "bf_io",
                       .horizon = 20,
                       .objective = "square",
                       .expected_workers = 2,
                       .waiting = 3,
                       .max_waiting = 4096};
  state.retired_steps.steps = 5;
  state.retired_distributions.local_s.Add(0.02);
  state.scheduler.late_plans = 9;
  state.scheduler.held_back = 6;
  state.requests.accepted = 5;
  state.requests.refused_by_workers = 2;
  state.requests.queue_timeouts = 2;
  state.requests.ttft_objectives_met = 3;
  state.requests.ttft_objectives_missed = 1;
  state.tenants.push_back({"acme", 3, 2, 100, 40});
  state.latencies.queue_time_s.Add(0.01);
  state.energy = EnergyTotals{8, 1, 2};
  state.groups = {ViewOfGroup(0, "0", 3), ViewOfGroup(1, "blue", 4)};
  state.groups[0].workers = {Worker("w0", 0), Worker("w1", std::nullopt)};
  WorkerView measured = Worker("w2", std::nullopt);
  measured.member.service_s = 0.5;
  measured.member.telemetry.cost = StepCostEstimate{FittedValue{0.005, 1e-5}, std::nullopt};
  measured.energy = EnergyReading{.device = "x", .busy_j = 8, .idle_watts = 60};
  state.groups[1].workers = {measured};
  state.groups[1].model = "5eed";
  state.groups[1].placement =
      PlacementView{"horizon", 3, {{"horizon", 1}, {"headroom", 1.041}}, {{"fcfs", 1.2}}};
  v1::ClusterState proto = ToProto(state);
  EXPECT_EQ(Take(proto.mutable_step_times()->mutable_local_s()), 3u) << "those of groups that are gone, too";
  EXPECT_EQ(Take(proto.mutable_latencies()->mutable_queue_time_s()), 1u);
  proto.clear_step_times();
  proto.clear_latencies();
  for (v1::GroupState& group : *proto.mutable_groups()) group.clear_step_times();
  // Steps add up over the groups, those that are gone, too; the epoch is the largest.
  EXPECT_EQ(proto.ShortDebugString(), bfio::testing::FromText<v1::ClusterState>(R"(
      timestamp { seconds: 1 nanos: 500000000 } version: "1.2.3" uptime { seconds: 90 } epoch: 4
      plan_mode: PLAN_MODE_PIPELINED policy { name: "bf_io" horizon: 20 objective: "square" }
      expected_workers: 2
      workers { worker_id: "w0" phase: WORKER_PHASE_SERVING rank: 0 engine: "sim" slots: 8 kv_tokens:
      1000 active_requests: 2 inflight_requests: 1 load_tokens: 50 straggler_steps: 4 time_per_token:
      1.5 time_offset: 20 pending_prefill_tokens: 30 token_budget: 512 group: "0" reserved_kv_tokens:
      400 }
      workers { worker_id: "w1" phase: WORKER_PHASE_JOINING engine: "sim" slots: 8 kv_tokens: 1000
      group: "0" }
      workers { worker_id: "w2" phase: WORKER_PHASE_JOINING engine: "sim" slots: 8 kv_tokens: 1000 cost
      { c_s { value: 0.005 standard_error: 1e-05 } } energy {
      device: "x" busy_j: 8 idle_watts: 60 } service_s: 0.5 group: "blue" }
      waiting_requests: 3 max_waiting_requests: 4096 steps { steps: 25 barrier_wait_s: 1 decide_max_s:
      0.5 late_plans: 9 }
      requests { accepted: 5 refused_by_workers: 2 held_back: 6 queue_timeouts: 2 ttft_objectives_met: 3
      ttft_objectives_missed: 1 } energy { busy_j: 8 barrier_j: 1 parked_j: 2 }
      tenants { tenant: "acme" accepted: 3 completed: 2 prompt_tokens: 100 generated_tokens: 40 }
      groups { name: "0" epoch: 3 ready: true steps { steps: 10 barrier_wait_s: 0.5 decide_max_s: 0.375
      late_plans: 1 } }
      groups { name: "blue" index: 1 epoch: 4 ready: true steps { steps: 10 barrier_wait_s: 0.5
      decide_max_s: 0.5 late_plans: 1 } model: "5eed" placement { rule: "horizon" switches: 3 candidates
      { rule: "horizon" step_ratio: 1 } candidates { rule: "headroom" step_ratio: 1.041 } watched {
      rule: "fcfs" step_ratio: 1.2 } } }
      process { })")
                                          .ShortDebugString());
}

// --- state metrics ---

v1::ClusterState State() {
  std::string text = R"(
      version: "1.2.3" policy { name: "bf_io_auto" } waiting_requests: 9 served_model_name: "Qwen/Qwen3-0.6B"
      workers { rank: 0 worker_id: "vllm://10.0.0.1:50100#1" group: "0" slots: 8 kv_tokens: 1000 load_tokens: 300
                reserved_kv_tokens: 900 active_requests: 3 inflight_requests: 1 }
      workers { rank: 1 worker_id: "vllm://10.0.0.1:50100#0" group: "0" slots: 8 kv_tokens: 1000 load_tokens: 100
                reserved_kv_tokens: 900 active_requests: 3 inflight_requests: 1 }
      workers { worker_id: "joining" }
      groups { name: "0" step_predicted_ratio: 0.5 placement { rule: "horizon" switches: 2 candidates { rule: "horizon" step_ratio: 1 }
                                     candidates { rule: "headroom" step_ratio: 1.25 }
                                     watched { rule: "fcfs" step_ratio: 1.5 } } }
      tenants { tenant: "acme" } tenants { tenant: "other" } ports { port: "client" } energy { busy_j: 8 })";
  const std::string distribution = " { upper_bounds: 1 counts: [2, 1] sum: 5 }";
  for (const char* name : {"queue_time_s", "time_to_first_token_s", "inter_token_s",
                           "time_per_output_token_s", "end_to_end_s", "prompt_tokens", "output_tokens"})
    absl::StrAppend(&text, " latencies { ", name, distribution, " }");
  for (const char* name : {"local_s", "barrier_wait_s", "gap_s", "decide_s"})
    absl::StrAppend(&text, " step_times { ", name, distribution, " }");
  return bfio::testing::FromText<v1::ClusterState>(text);
}

// Each line of `lines` begins a line of the metrics.
void ExpectLines(const std::string& metrics, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) EXPECT_THAT(metrics, HasSubstr("\nbfio:" + line));
}

TEST(StateMetricsTest, MetricsOfAGroup) {
  const std::string text = MetricsText(State());
  // A request waits for reserved memory while slots are free and the usage is low.
  ExpectLines(text, {"num_requests_running 8\n", "num_requests_waiting 9\n", "ranks 2\n",
                     "max_load_tokens 300\n", "mean_load_tokens 200\n", "min_load_tokens 100\n",
                     "idle_fraction 0.33333", "kv_cache_usage_perc{group=\"0\",rank=\"0\"} 0.3",
                     "rank_kv_reserved_tokens{group=\"0\",rank=\"0\"} 900\n",
                     "rank_kv_capacity_tokens{group=\"0\",rank=\"0\"} 1000\n",
                     "load_tokens{group=\"0\",rank=\"1\"} 100\n", "policy_info{policy=\"bf_io_auto\"} 1\n",
                     "time_to_first_token_seconds_bucket{le=\"+Inf\"} 3\n",
                     "tenant_requests_accepted_total{tenant=\"acme\"} 0\n", "energy_busy_joules_total 8\n",
                     "rank_info{group=\"0\",rank=\"0\",worker=\"vllm://10.0.0.1:50100#1\"} 1\n"
                     "bfio:rank_info{group=\"0\",rank=\"1\",worker=\"vllm://10.0.0.1:50100#0\"} 1\n",
                     "is_leader 1\n", "step_predicted_ratio{group=\"0\"} 0.5\n"});
  EXPECT_THAT(text, Not(HasSubstr("joining"))) << "it has no rank";
  // Autoscalers know the names that vLLM has given.
  for (const char* metric : {"num_requests_running{model_name=\"Qwen/Qwen3-0.6B\"} 8\n",
                             "num_requests_waiting{model_name=\"Qwen/Qwen3-0.6B\"} 9\n",
                             "kv_cache_usage_perc{model_name=\"Qwen/Qwen3-0.6B\"} 0.2"})
    EXPECT_THAT(text, HasSubstr(absl::StrCat("\nvllm:", metric)));
}

TEST(StateMetricsTest, PlacementRuleAndWhatTheOthersWouldCost) {
  const std::string text =
      MetricsText(bfio::testing::FromText("groups { name: 'young' placement { rule: 'counts' } }", State()));
  ExpectLines(text, {"placement_rule{group=\"0\",rule=\"horizon\"} 1\n",
                     "placement_rule{group=\"0\",rule=\"headroom\"} 0\n",
                     "placement_step_ratio{group=\"0\",rule=\"headroom\"} 1.25\n",
                     "placement_step_ratio{group=\"0\",rule=\"fcfs\"} 1.5\n",
                     "placement_switches_total{group=\"0\"} 2\n",
                     "placement_rule{group=\"young\",rule=\"counts\"} 1\n"});
  EXPECT_THAT(text, Not(HasSubstr("placement_rule{group=\"0\",rule=\"fcfs\"}"))) << "only watched";
  EXPECT_THAT(text, Not(HasSubstr("step_ratio{group=\"young\""))) << "not measured yet";
}

// The documentation is made of this list.
TEST(StateMetricsTest, TheListHasEveryExposedMetric) {
  std::set<std::string> exposed, listed;
  for (absl::string_view line : absl::StrSplit(MetricsText(State()), '\n')) {
    if (absl::ConsumePrefix(&line, "# TYPE ")) exposed.emplace(line.substr(0, line.find(' ')));
  }
  for (const MetricInfo& info : RouterMetrics()) {
    EXPECT_TRUE(listed.emplace(info.name).second) << info.name << " twice";
    EXPECT_EQ(info.kind == MetricKind::kCounter, absl::EndsWith(info.name, "_total")) << info.name;
    EXPECT_TRUE(absl::StartsWith(info.name, "bfio:") || absl::StartsWith(info.name, "vllm:")) << info.name;
    EXPECT_FALSE(info.help.empty()) << info.name;
  }
  EXPECT_EQ(exposed, listed);
}

}  // namespace
}  // namespace bfio::router
