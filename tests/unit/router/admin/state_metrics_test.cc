#include "router/admin/state_metrics.h"

#include <gmock/gmock.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/testing/from_text.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  ExpectLines(
      text,
      {"num_requests_running 8\n", "num_requests_waiting 9\n", "ranks 2\n", "max_load_tokens 300\n",
       "mean_load_tokens 200\n", "min_load_tokens 100\n", "balance_ratio 0.66666", "idle_fraction 0.33333",
       "kv_cache_usage_perc{group=\"0\",rank=\"0\"} 0.3",
       "rank_kv_reserved_tokens{group=\"0\",rank=\"0\"} 900\n",
       "rank_kv_capacity_tokens{group=\"0\",rank=\"0\"} 1000\n", "load_tokens{group=\"0\",rank=\"1\"} 100\n",
       "policy_info{policy=\"bf_io_auto\"} 1\n", "time_to_first_token_seconds_bucket{le=\"+Inf\"} 3\n",
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
