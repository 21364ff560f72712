#include "router/admin/live/live_page.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "tests/testing/from_text.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;

class LivePageTest : public ::testing::Test {
 protected:
  LivePageTest() {
    const auto ok = [] { return absl::OkStatus(); };
    const auto act = [this](const std::string& worker, const std::string& who) {
      acted_ = worker + " by " + who;
      return absl::OkStatus();
    };
    Serve(
        {ok,
         ok,
         [this]() -> absl::StatusOr<v1::ClusterState> {
           if (busy_) return absl::DeadlineExceededError("the router is busy");
           v1::ClusterState state;
           state.set_version("9.9");
           state.mutable_steps()->set_generated_tokens(12);
           return state;
         },
         [act](const v1::PolicySetting& setting, const std::string& who) { return act(setting.name(), who); },
         act,
         act,
         {"fcfs", "lpt"}});
  }
  void Serve(LiveSource source) {
    auto server = HttpServer::Bind({"127.0.0.1:0", nullptr, "", "", ""});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    AddLivePage(*server_, history_, std::move(source));
    server_->Start();
    const std::vector<std::string> parts = absl::StrSplit(server_->address(), ':');
    client_ = std::make_unique<httplib::Client>("127.0.0.1", std::stoi(parts.back()));
  }
  ~LivePageTest() override { history_->Close(); }

  void Steps(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      StepSummary summary;
      summary.epoch = 1;
      summary.step = i;
      for (const int64_t load : {30, 10}) {
        summary.load_tokens.push_back(load);
        summary.active_requests.push_back(1);
        summary.local.push_back(absl::Nanoseconds(load));
        summary.barrier_wait.push_back(absl::Nanoseconds(30 - load));
      }
      history_->OnStep(summary, absl::FromUnixMillis(1000 + 500 * i));
    }
  }

  std::shared_ptr<LiveHistory> history_ = std::make_shared<LiveHistory>();
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<httplib::Client> client_;
  std::atomic<bool> busy_{false};
  std::string acted_;
};

TEST_F(LivePageTest, ThePageIsSelfContained) {
  // A browser runs a script only if its content type is that of a script.
  for (const auto& [path, type] : {std::pair("/", "text/html"),
                                   {"/live.css", "text/css"},
                                   {"/figures.js", "text/javascript"},
                                   {"/charts.js", "text/javascript"},
                                   {"/live.js", "text/javascript"}}) {
    const auto reply = client_->Get(path);
    ASSERT_EQ(reply->status, 200) << path;
    for (const char* other : {"//cdn", "https://", "http://"})
      EXPECT_FALSE(absl::StrContains(reply->body, other)) << path;
    EXPECT_THAT(reply->get_header_value("Content-Security-Policy"), HasSubstr("default-src 'none'"));
    EXPECT_EQ(reply->get_header_value("Content-Type"), absl::StrCat(type, "; charset=utf-8")) << path;
  }
}

// A message in which every field has a value (times: whole seconds), numbers and texts distinct ones, and
// every list two elements.
std::string AllFields(const google::protobuf::Descriptor& message, int& next) {
  std::string text;
  for (int i = 0; i < message.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *message.field(i);
    if (field.cpp_type() == field.CPPTYPE_INT32) continue;  // nanoseconds
    for (int n = 0; n < (field.is_repeated() ? 2 : 1); ++n) {
      const std::string value =
          field.message_type() != nullptr ? absl::StrCat("{ ", AllFields(*field.message_type(), next), " }")
          : field.cpp_type() == field.CPPTYPE_STRING ? absl::StrCat("'text ", ++next, "'")
          : field.cpp_type() == field.CPPTYPE_BOOL   ? "true"
          : field.cpp_type() == field.CPPTYPE_ENUM   ? "2"
                                                     : absl::StrCat(++next);
      absl::StrAppend(&text, field.name(), ": ", value, " ");
    }
  }
  return text;
}

// In protobuf's JSON, 64-bit numbers are strings.
TEST(PageStateTest, AgreesWithProtobufsJson) {
  int next = 0;
  auto state = bfio::testing::FromText<v1::ClusterState>(AllFields(*v1::ClusterState::descriptor(), next));
  std::string json;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(state, &json).ok());
  const nlohmann::json whole = nlohmann::json::parse(json).flatten(),
                       page = nlohmann::json::parse(PageStateJson(state)).flatten();
  for (const auto& [path, value] : page.items()) {
    ASSERT_TRUE(whole.contains(path)) << path;
    EXPECT_EQ(whole[path].is_string() && value.is_number() ? nlohmann::json(value.dump()) : value,
              whole[path])
        << path;
    // Lists are complete.
    const size_t last = path.rfind("/0");
    EXPECT_TRUE(last == std::string::npos || page.contains(std::string(path).replace(last, 2, "/1"))) << path;
  }
  EXPECT_GT(page.size(), 50u);
  // A joining worker has no rank; its rank must be absent rather than 0.
  state.mutable_workers(0)->clear_rank();
  EXPECT_FALSE(nlohmann::json::parse(PageStateJson(state))["workers"][0].contains("rank"));
  state.mutable_policy()->set_name("\xff");
  EXPECT_NE(PageStateJson(state), "");
}

TEST_F(LivePageTest, StateMetricsActionsAndProbes) {
  const auto expect = [&](int status, const std::vector<const char*>& paths) {
    for (const char* path : paths) EXPECT_EQ(client_->Get(path)->status, status) << path;
  };
  EXPECT_EQ(nlohmann::json::parse(client_->Get("/api/page")->body).at("version"), "9.9");
  EXPECT_EQ(nlohmann::json::parse(client_->Get("/api/state")->body).at("version"), "9.9");
  EXPECT_THAT(client_->Get("/metrics")->body, HasSubstr("\nbfio:generation_tokens_total 12\n"));
  EXPECT_EQ(nlohmann::json::parse(client_->Get("/api/policies")->body), nlohmann::json({"fcfs", "lpt"}));
  for (const char* action : {"policy", "drain", "undrain"}) {
    const char* const field = action == std::string("policy") ? "name" : "worker_id";
    EXPECT_EQ(client_
                  ->Post(absl::StrCat("/api/", action),
                         absl::StrCat(R"({")", field, R"(": ")", action, R"("})"), "application/json")
                  ->status,
              200);
    EXPECT_EQ(acted_, absl::StrCat(action, " by 127.0.0.1"));
  }
  busy_ = true;
  expect(503, {"/api/state", "/api/page", "/metrics"});
  expect(200, {"/healthz", "/readyz"});  // busy is not stuck
}

TEST_F(LivePageTest, EventsBeginWithHistoryAndContinue) {
  Steps(4);
  std::string text;
  bool more = true;
  client_->Get("/api/events?after=1", [&](const char* data, size_t size) {
    text.append(data, size);
    if (more && absl::StrContains(text, "\n\n")) {
      more = false;
      Steps(5);
    }
    return text.find("data: ", text.find("data: ") + 1) == std::string::npos || !absl::EndsWith(text, "\n\n");
  });
  std::vector<uint64_t> numbers;
  for (absl::string_view event : absl::StrSplit(text, "\n\n")) {
    if (!absl::ConsumePrefix(&event, "data: ")) continue;
    for (const auto& sample : nlohmann::json::parse(event)) {
      numbers.push_back(sample.at("n"));
      EXPECT_EQ(sample.at("load"), nlohmann::json({30, 10}));
      EXPECT_NEAR(sample.at("idle").get<double>(), 1 - 20.0 / 30, 1e-12);
    }
  }
  ASSERT_GE(numbers.size(), 3u);
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], i + 2);
}

TEST_F(LivePageTest, WhereThePortOnlyShowsNothingCanBeDone) {
  LiveSource source;
  source.alive = source.ready = [] { return absl::OkStatus(); };
  source.state = [] { return v1::ClusterState(); };
  Serve(std::move(source));
  EXPECT_EQ(client_->Get("/metrics")->status, 200);
  EXPECT_EQ(client_->Get("/api/policies")->body, "[]") << "the page has no buttons";
  for (const char* lever : {"/api/policy", "/api/drain", "/api/undrain"})
    EXPECT_EQ(client_->Post(lever, "{}", "application/json")->status, 404) << lever;
}

}  // namespace
}  // namespace bfio::router
