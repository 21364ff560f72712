#include "tools/openai/front_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace bfio::openai {
namespace {

using ::testing::HasSubstr;

TEST(FrontMetricsTest, CountsCompletionsByHowTheyEnded) {
  FrontMetrics metrics;
  {
    FrontMetrics::Completion whole(&metrics), refused(&metrics), left(&metrics);
    EXPECT_THAT(metrics.Text("1", 5, 2), HasSubstr("bfio:openai_requests_running 3\n"));
    whole.AddTokens(0);
    whole.AddTokens(3);
    whole.AddTokens(4);
    left.AddTokens(1);
    whole.set_code(200);
    refused.set_code(429);
  }
  const std::string text = metrics.Text("1.2", 5, 2);
  for (const char* line :
       {"bfio:openai_build_info{version=\"1.2\"} 1\n", "bfio:openai_requests_running 0\n",
        "bfio:openai_requests_total{code=\"200\"} 1\n", "bfio:openai_requests_total{code=\"429\"} 1\n",
        "bfio:openai_requests_total{code=\"499\"} 1\n", "bfio:openai_requests_total{code=\"503\"} 0\n",
        "bfio:openai_generation_tokens_total 8\n", "bfio:openai_connections 5\n",
        "bfio:openai_connections_waiting 2\n", "bfio:openai_time_to_first_token_seconds_count 2\n",
        "bfio:openai_e2e_request_latency_seconds_count 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(FrontMetricsTest, DocsMetricsIsUpToDate) {
  for (const MetricInfo& info : FrontMetricInfos()) {
    EXPECT_EQ(info.kind == MetricKind::kCounter, absl::EndsWith(info.name, "_total")) << info.name;
    EXPECT_TRUE(absl::StartsWith(info.name, "bfio:openai_")) << info.name;
  }
  std::ifstream file(absl::StrCat(BFIO_SOURCE_DIR, "/docs/metrics.md"));
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(page, HasSubstr(MetricsTable("OpenAI front", FrontMetricInfos())));
}

}  // namespace
}  // namespace bfio::openai
