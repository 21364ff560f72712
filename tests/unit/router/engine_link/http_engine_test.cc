// An engine behind Envoy: what the router reads of it, and how requests are placed there.
#include "router/engine_link/http/http_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "router/engine_link/http/metrics_text.h"
#include "router/requests/placed_request.h"
#include "tests/testing/http_engine.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kAnswerTime = absl::Seconds(30);

std::unique_ptr<EngineClient> ClientOf(int port, int32_t slots = 8) {
  return NewHttpEngine(
      {.protocol = "http", .server = {"127.0.0.1", static_cast<uint16_t>(port)}, .slots = slots});
}

// The answer of a call with a callback.
template <typename Answer, typename Call>
Answer Await(Call call) {
  absl::Notification done;
  std::optional<Answer> answer;
  call([&](Answer given) {
    answer = std::move(given);
    done.Notify();
  });
  done.WaitForNotification();
  return *std::move(answer);
}
absl::StatusOr<EngineDescription> Describe(EngineClient& client) {
  return Await<absl::StatusOr<EngineDescription>>(
      [&](auto done) { client.Describe(kAnswerTime, std::move(done)); });
}
absl::StatusOr<std::vector<EngineRankLoad>> Loads(EngineClient& client) {
  return Await<absl::StatusOr<std::vector<EngineRankLoad>>>(
      [&](auto done) { client.GetLoads(kAnswerTime, std::move(done)); });
}
absl::Status Health(EngineClient& client) {
  return Await<absl::Status>([&](auto done) { client.CheckHealth(kAnswerTime, std::move(done)); });
}

TEST(HttpEngine, ItsRanksSizesAndLoads) {
  testing::HttpEngine engine(2, 4);
  const auto client = ClientOf(engine.port());
  const auto description = Describe(*client);
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(*description, (EngineDescription{.ranks = 2,
                                             .first_rank = 4,
                                             .all_ranks = 2,
                                             .slots = 8,
                                             .kv_tokens = 16'000,
                                             .max_sequence_tokens = 4096,
                                             .model = "m"}));
  engine.running = 3;
  engine.waiting = 2;
  engine.generated = 500;
  const auto loads = Loads(*client);
  ASSERT_TRUE(loads.ok()) << loads.status();
  ASSERT_EQ(loads->size(), 2u);
  EXPECT_EQ(loads->back().rank, 5);
  EXPECT_EQ(loads->back().load.requests, 5);
  EXPECT_EQ(loads->back().load.tokens, 4000) << "a quarter of the rank's own";
  EXPECT_EQ(loads->back().load.generated, 500);
  EXPECT_TRUE(Health(*client).ok());
  engine.healthy = false;
  EXPECT_EQ(Health(*client).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(HttpEngine, WhatItDoesNotTellIsNamed) {
  testing::HttpEngine engine;
  EXPECT_THAT(std::string(Describe(*ClientOf(engine.port(), 0)).status().message()), HasSubstr("set slots"));
  engine.more_metrics = "sglang:max_running_requests{engine=\"0\"} 48\n";
  EXPECT_EQ(Describe(*ClientOf(engine.port(), 0))->slots, 48);
  engine.models = R"({"data":[]})";
  EXPECT_THAT(std::string(Describe(*ClientOf(engine.port())).status().message()), HasSubstr("no model"));
  engine.models = "[";
  EXPECT_EQ(Describe(*ClientOf(engine.port())).status().code(), absl::StatusCode::kInvalidArgument);
  const auto client = ClientOf(engine.port());
  engine.Stop();
  EXPECT_EQ(Health(*client).code(), absl::StatusCode::kUnavailable);
}

TEST(HttpEngine, RequestsArePlacedByTheirOwnEdgeAndOthersAreRefused) {
  class Placed final : public PlacedRequest {
   public:
    Placed() : PlacedRequest(0) {}
    void SendTo(const Place& place, OnEnd on_end) const override {
      server = place.server;
      rank = place.rank;
      std::move(on_end)(end);
    }
    mutable std::string server;
    mutable std::optional<int32_t> rank;
    absl::Status end;
  };
  testing::HttpEngine engine;
  const auto client = ClientOf(engine.port());
  const auto end_of = [&](PassedPtr message) {
    EngineCall call;
    call.passed = {.on = true, .message = std::move(message), .whole = true};
    return Await<absl::StatusOr<EngineEnd>>([&](auto done) {
      client->Generate(call, 2, "name", {[](const EngineTokens&) {}, std::move(done)});
    });
  };
  const auto placed = std::make_shared<Placed>();
  const auto end = end_of(placed);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->whole_tokens, EngineEnd::kUnknown);
  EXPECT_EQ(placed->server, engine.address());
  EXPECT_EQ(placed->rank, 2);
  placed->end = absl::UnavailableError("refused");
  EXPECT_TRUE(absl::IsUnavailable(end_of(placed).status()));
  EXPECT_EQ(end_of(nullptr).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(MetricsText, OddLinesAreSkipped) {
  std::vector<std::string> read;
  ReadMetrics(
      "a:x 1\na:y{} 2\na:z{l=\"v}\\\"\",m=\"\"} 3e2 99\nb:x 4\na:broken{l=\"v\" 5\na:none\na:text no\na:",
      "a:", [&](const MetricSample& sample) {
        read.push_back(absl::StrCat(sample.name, "=", sample.value, " ", sample.label("l")));
      });
  EXPECT_THAT(read, ::testing::ElementsAre("a:x=1 ", "a:y=2 ", "a:z=300 v}\\\""));
}

}  // namespace
}  // namespace bfio::router
