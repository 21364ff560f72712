#include "router/admin/state_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void Fill(v1::Distribution& d) {
  d.add_upper_bounds(1);
  d.add_counts(2);
  d.add_counts(1);
  d.set_sum(5);
}

v1::ClusterState State() {
  v1::ClusterState state;
  state.set_version("1.2.3");
  state.mutable_policy()->set_name("bf_io_auto");
  state.set_waiting_requests(9);
  state.set_served_model_name("Qwen/Qwen3-0.6B");
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::WorkerState& worker = *state.add_workers();
    worker.set_rank(rank);
    worker.set_worker_id(absl::StrCat("vllm://10.0.0.1:50100#", 1 - rank));
    worker.set_group("0");
    worker.set_slots(8);
    worker.set_kv_tokens(1000);
    worker.set_load_tokens(rank == 0 ? 300 : 100);
    worker.set_reserved_kv_tokens(900);
    worker.set_active_requests(3);
    worker.set_inflight_requests(1);
  }
  state.add_workers()->set_worker_id("joining");
  v1::RequestLatencies& l = *state.mutable_latencies();
  for (v1::Distribution* d :
       {l.mutable_queue_time_s(), l.mutable_time_to_first_token_s(), l.mutable_inter_token_s(),
        l.mutable_time_per_output_token_s(), l.mutable_end_to_end_s(), l.mutable_prompt_tokens(),
        l.mutable_output_tokens()}) {
    Fill(*d);
  }
  v1::StepTimes& t = *state.mutable_step_times();
  for (v1::Distribution* d :
       {t.mutable_local_s(), t.mutable_barrier_wait_s(), t.mutable_gap_s(), t.mutable_decide_s()}) {
    Fill(*d);
  }
  Fill(*state.mutable_solver_gap());
  v1::GroupState& group = *state.add_groups();
  group.set_name("0");
  group.mutable_placement()->set_rule("horizon");
  group.mutable_placement()->set_switches(2);
  for (const auto& [rule, ratio] : {std::pair("horizon", 1.0), std::pair("headroom", 1.25)}) {
    v1::PlacementState::Candidate& candidate = *group.mutable_placement()->add_candidates();
    candidate.set_rule(rule);
    candidate.set_step_ratio(ratio);
  }
  v1::PlacementState::Candidate& watched = *group.mutable_placement()->add_watched();
  watched.set_rule("fcfs");
  watched.set_step_ratio(1.5);
  state.add_tenants()->set_tenant("acme");
  state.add_ports()->set_port("client");
  state.add_tenants()->set_tenant("other");
  state.mutable_energy()->set_busy_j(8);
  return state;
}

TEST(StateMetricsTest, MetricsOfAGroup) {
  const std::string text = MetricsText(State());
  EXPECT_THAT(text, HasSubstr("\nbfio:num_requests_running 8\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:num_requests_waiting 9\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:ranks 2\n")) << "the joining worker is none";
  EXPECT_THAT(text, HasSubstr("\nbfio:max_load_tokens 300\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:mean_load_tokens 200\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:min_load_tokens 100\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:balance_ratio 0.66666"));
  EXPECT_THAT(text, HasSubstr("\nbfio:idle_fraction 0.33333"));
  EXPECT_THAT(text, HasSubstr("\nbfio:kv_cache_usage_perc{group=\"0\",rank=\"0\"} 0.3"));
  EXPECT_THAT(text, HasSubstr("\nbfio:rank_kv_reserved_tokens{group=\"0\",rank=\"0\"} 900\n"))
      << "what keeps a request waiting while slots are free and the usage is low";
  EXPECT_THAT(text, HasSubstr("\nbfio:rank_kv_capacity_tokens{group=\"0\",rank=\"0\"} 1000\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:load_tokens{group=\"0\",rank=\"1\"} 100\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:policy_info{policy=\"bf_io_auto\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:time_to_first_token_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:tenant_requests_accepted_total{tenant=\"acme\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:energy_busy_joules_total 8\n"));
}

TEST(StateMetricsTest, PlacementRuleAndWhatTheOthersWouldCost) {
  v1::ClusterState state = State();
  state.add_groups()->mutable_placement()->set_rule("counts");
  state.mutable_groups(1)->set_name("young");
  const std::string text = MetricsText(state);
  EXPECT_THAT(text, HasSubstr("\nbfio:placement_rule{group=\"0\",rule=\"horizon\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:placement_rule{group=\"0\",rule=\"headroom\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:placement_step_ratio{group=\"0\",rule=\"headroom\"} 1.25\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:placement_step_ratio{group=\"0\",rule=\"fcfs\"} 1.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("placement_rule{group=\"0\",rule=\"fcfs\"}"))) << "only watched";
  EXPECT_THAT(text, HasSubstr("\nbfio:placement_switches_total{group=\"0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:placement_rule{group=\"young\",rule=\"counts\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("step_ratio{group=\"young\""))) << "not measured yet";
}

TEST(StateMetricsTest, AutoscalersFindTheNamesThatVllmHasGiven) {
  const std::string text = MetricsText(State());
  EXPECT_THAT(text, HasSubstr("\nvllm:num_requests_running{model_name=\"Qwen/Qwen3-0.6B\"} 8\n"));
  EXPECT_THAT(text, HasSubstr("\nvllm:num_requests_waiting{model_name=\"Qwen/Qwen3-0.6B\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("\nvllm:kv_cache_usage_perc{model_name=\"Qwen/Qwen3-0.6B\"} 0.2"));
}

TEST(StateMetricsTest, EveryRankNamesItsWorker) {
  const std::string text = MetricsText(State());
  EXPECT_THAT(text,
              HasSubstr("\nbfio:rank_info{group=\"0\",rank=\"0\",worker=\"vllm://10.0.0.1:50100#1\"} 1\n"
                        "bfio:rank_info{group=\"0\",rank=\"1\",worker=\"vllm://10.0.0.1:50100#0\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("joining"))) << "it has no rank";
}

TEST(StateMetricsTest, AStandbyIsNotLeader) {
  EXPECT_THAT(MetricsText(State()), HasSubstr("\nbfio:is_leader 1\n"));
  const std::string text = StandbyMetricsText("1.2.3", 7);
  EXPECT_THAT(text, HasSubstr("\nbfio:is_leader 0\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:build_info{version=\"1.2.3\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:uptime_seconds 7\n"));
}

TEST(StateMetricsTest, RanksOfOtherGroupsDoNotCount) {
  v1::ClusterState state = State();
  // A second group, evenly loaded, with higher loads than the first.
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::WorkerState& worker = *state.add_workers();
    worker.set_rank(rank);
    worker.set_group("blue");
    worker.set_load_tokens(1000);
  }
  const std::string text = MetricsText(state);
  EXPECT_THAT(text, HasSubstr("\nbfio:ranks 4\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:load_tokens{group=\"blue\",rank=\"1\"} 1000\n"));
  // 2 * 300 - 400 tokens idle out of 2 * 300 + 2 * 1000.
  EXPECT_THAT(text, HasSubstr("\nbfio:idle_fraction 0.0769"));
}

TEST(StateMetricsTest, NoGroupNoRanks) {
  const std::string text = MetricsText(v1::ClusterState());
  EXPECT_THAT(text, HasSubstr("\nbfio:ranks 0\n"));
  EXPECT_THAT(text, HasSubstr("\nbfio:balance_ratio 1\n"));
  EXPECT_THAT(text, Not(HasSubstr(" nan")));
  EXPECT_THAT(text, Not(HasSubstr("rank=")));
  EXPECT_THAT(text, Not(HasSubstr("_bucket"))) << "no distribution was given";
  EXPECT_THAT(text, Not(HasSubstr("joules"))) << "nothing was measured";
}

// Every metric on the documentation page is exposed, and every exposed metric is on the page.
TEST(StateMetricsTest, ThePageListsEveryExposedMetric) {
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

TEST(StateMetricsTest, DocsMetricsIsUpToDate) {
  std::ifstream file(absl::StrCat(BFIO_SOURCE_DIR, "/docs/metrics.md"));
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(page, HasSubstr(MetricsTable("Router", RouterMetrics())));
}

}  // namespace
}  // namespace bfio::router
