// The decision log and the log lines of real programs.
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

// The first line with this text; null when there is none. Every line must be JSON.
nlohmann::json LineWith(const std::string& log, const std::string& text) {
  for (const absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    EXPECT_TRUE(json.is_object()) << line;
    if (json.is_object() && absl::StrContains(json.value("message", ""), text)) return json;
  }
  return nullptr;
}

TEST(Logs, JsonLinesSayInFieldsWhatTheyAreAbout) {
  const std::string trace = "0af7651916cd43dd8448eb211c80319c";
  ClusterOptions options = {
      .worker_processes = 1,
      .router_flags = {"--log_format=json", absl::StrCat("--client_timeout=", 300 * kSlowdown, "ms")},
      .worker_flags = {"--log_format=json", "--log_level=debug"}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  v1::GenerateRequest request = SyntheticRequest(10, 60'000);
  request.set_request_id("job \"1\"");
  request.set_tenant("acme");
  request.set_resumable(true);
  {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", absl::StrCat("00-", trace, "-b7ad6b7169203331-01"));
    const auto reader = cluster.inference().Generate(&context, request);
    v1::GenerateResponse response;
    ASSERT_TRUE(reader->Read(&response));
    context.TryCancel();
  }
  ASSERT_TRUE(cluster.WaitFor("the end of the abandoned request", [](const v1::ClusterState& state) {
    return state.requests().resume_expired() == 1;
  }));
  const std::string worker_id = cluster.State().workers(0).worker_id();
  cluster.StopCleanly();
  const nlohmann::json expired = LineWith(cluster.router().Stderr(), "no client has resumed it");
  ASSERT_TRUE(expired.is_object()) << cluster.router().Stderr();
  EXPECT_EQ(expired["request_id"], request.request_id());
  EXPECT_EQ(expired["tenant"], "acme");
  EXPECT_EQ(expired["trace_id"], trace);
  EXPECT_EQ(expired["rank"], 0);
  const nlohmann::json attached = LineWith(cluster.router().Stderr(), " attached ");
  ASSERT_TRUE(attached.is_object()) << cluster.router().Stderr();
  EXPECT_EQ(attached["worker"], worker_id);
  EXPECT_EQ(attached["group"], "0");
  EXPECT_EQ(LineWith(cluster.router().Stderr(), " serves with ")["epoch"], 1);
  EXPECT_TRUE(absl::StrContains(cluster.workers()[0].Stderr(), trace));
  const nlohmann::json joined = LineWith(cluster.workers()[0].Stderr(), "rank 0 of 1");
  ASSERT_TRUE(joined.is_object()) << cluster.workers()[0].Stderr();
  EXPECT_EQ(joined["worker"], worker_id);
  EXPECT_EQ(joined["epoch"], 1);
}

}  // namespace
}  // namespace bfio::testing
