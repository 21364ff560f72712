#include "router/admin/live/live_page.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "router/admin/live/page_state.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;

class LivePageTest : public ::testing::Test {
 protected:
  LivePageTest() {
    auto server = HttpServer::Bind({"127.0.0.1:0", nullptr, "", "", ""});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    AddLivePage(*server_, history_,
                {[this] { return stuck_ ? absl::UnavailableError("stuck") : absl::OkStatus(); },
                 [this] { return stuck_ || stopping_ ? absl::UnavailableError("no") : absl::OkStatus(); },
                 [this]() -> absl::StatusOr<v1::ClusterState> {
                   if (busy_) return absl::DeadlineExceededError("the router is busy");
                   v1::ClusterState state;
                   state.set_version("9.9");
                   state.mutable_steps()->set_generated_tokens(12);
                   return state;
                 },
                 [this](const v1::PolicySetting& setting, const std::string&) {
                   if (setting.name() != "fcfs") return absl::InvalidArgumentError("no such policy");
                   policy_ = setting.name();
                   return absl::OkStatus();
                 },
                 [this](const std::string& worker, const std::string&) {
                   if (worker != "w1") return absl::NotFoundError("no such worker");
                   drained_ = worker;
                   return absl::OkStatus();
                 },
                 [this](const std::string& worker, const std::string& who) {
                   undrained_ = worker + " by " + who;
                   return absl::OkStatus();
                 },
                 {"fcfs", "lpt"}});
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
  std::atomic<bool> busy_{false}, stuck_{false}, stopping_{false};
  std::string policy_, drained_, undrained_;
};

TEST_F(LivePageTest, ThePageIsSelfContained) {
  for (const char* path : {"/", "/live.css", "/figures.js", "/charts.js", "/live.js"}) {
    const auto reply = client_->Get(path);
    ASSERT_EQ(reply->status, 200) << path;
    EXPECT_FALSE(absl::StrContains(reply->body, "//cdn")) << path;
    EXPECT_FALSE(absl::StrContains(reply->body, "https://")) << path;
    EXPECT_FALSE(absl::StrContains(reply->body, "http://")) << path;
    EXPECT_THAT(reply->get_header_value("Content-Security-Policy"), HasSubstr("default-src 'none'"));
  }
  // A browser runs a script only if its content type is that of a script.
  for (const auto& [path, type] : {std::pair("/", "text/html"),
                                   {"/live.css", "text/css"},
                                   {"/figures.js", "text/javascript"},
                                   {"/charts.js", "text/javascript"},
                                   {"/live.js", "text/javascript"}}) {
    EXPECT_EQ(client_->Get(path)->get_header_value("Content-Type"), absl::StrCat(type, "; charset=utf-8"))
        << path;
  }
}

// Gives every field a distinct value and every list two elements.
void FillAll(google::protobuf::Message& message, int& next) {
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const auto* field = message.GetDescriptor()->field(i);
    const auto type = field->cpp_type();
    using Field = google::protobuf::FieldDescriptor;
    for (int n = 0; n < (field->is_repeated() ? 2 : 1); ++n) {
      const int value = ++next;
      if (type == Field::CPPTYPE_MESSAGE) {
        FillAll(field->is_repeated() ? *reflection->AddMessage(&message, field)
                                     : *reflection->MutableMessage(&message, field),
                next);
      } else if (field->is_repeated() && type == Field::CPPTYPE_UINT64) {
        reflection->AddUInt64(&message, field, static_cast<uint64_t>(value));
      } else if (field->is_repeated() && type == Field::CPPTYPE_DOUBLE) {
        reflection->AddDouble(&message, field, value);
      } else if (type == Field::CPPTYPE_UINT32) {
        reflection->SetUInt32(&message, field, static_cast<uint32_t>(value));
      } else if (type == Field::CPPTYPE_UINT64) {
        reflection->SetUInt64(&message, field, static_cast<uint64_t>(value));
      } else if (type == Field::CPPTYPE_INT64) {
        reflection->SetInt64(&message, field, value);
      } else if (type == Field::CPPTYPE_DOUBLE) {
        reflection->SetDouble(&message, field, value);
      } else if (type == Field::CPPTYPE_STRING) {
        reflection->SetString(&message, field, absl::StrCat("text ", value));
      } else if (type == Field::CPPTYPE_ENUM) {
        reflection->SetEnumValue(&message, field, 2);
      }
    }
  }
}

// Expects every value of `part` at the same place in `whole`, where 64-bit numbers are strings. Returns the
// number of values.
int ExpectPart(const nlohmann::json& part, const nlohmann::json& whole, const std::string& where) {
  int leaves = 0;
  if (part.is_structured()) {
    EXPECT_EQ(part.type(), whole.type()) << where;
    EXPECT_FALSE(part.is_array() && part.size() != whole.size()) << where;
    for (const auto& [key, value] : part.items()) {
      const bool there = part.is_array() || whole.contains(key);
      EXPECT_TRUE(there) << where << "." << key;
      if (!there) continue;
      leaves +=
          ExpectPart(value, part.is_array() ? whole.at(static_cast<size_t>(std::stoul(key))) : whole.at(key),
                     absl::StrCat(where, ".", key));
    }
    return leaves;
  }
  if (part.is_number() && whole.is_string()) {
    EXPECT_EQ(part.dump(), whole.get<std::string>()) << where;
  } else {
    EXPECT_EQ(part, whole) << where;
  }
  return 1;
}

TEST(PageStateTest, AgreesWithProtobufsJson) {
  v1::ClusterState state;
  int next = 0;
  FillAll(state, next);
  std::string whole;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(state, &whole).ok());
  EXPECT_GT(ExpectPart(nlohmann::json::parse(PageStateJson(state)), nlohmann::json::parse(whole), ""), 50);
  // A joining worker has no rank; its rank must be absent rather than 0.
  state.mutable_workers(0)->clear_rank();
  EXPECT_FALSE(nlohmann::json::parse(PageStateJson(state))["workers"][0].contains("rank"));
  state.mutable_policy()->set_name("\xff");
  EXPECT_NE(PageStateJson(state), "");
}

TEST_F(LivePageTest, StateAndMetrics) {
  EXPECT_EQ(nlohmann::json::parse(client_->Get("/api/page")->body).at("version"), "9.9");
  EXPECT_EQ(nlohmann::json::parse(client_->Get("/api/state")->body).at("version"), "9.9");
  EXPECT_THAT(client_->Get("/metrics")->body, HasSubstr("\nbfio:generation_tokens_total 12\n"));
  EXPECT_EQ(nlohmann::json::parse(client_->Get("/api/policies")->body), nlohmann::json({"fcfs", "lpt"}));
  busy_ = true;
  EXPECT_EQ(client_->Get("/api/state")->status, 503);
  EXPECT_EQ(client_->Get("/api/page")->status, 503);
  EXPECT_EQ(client_->Get("/metrics")->status, 503);
  EXPECT_EQ(client_->Get("/healthz")->status, 200) << "busy is not stuck";
  EXPECT_EQ(client_->Get("/readyz")->status, 200);
  stopping_ = true;
  EXPECT_EQ(client_->Get("/healthz")->status, 200) << "its requests may run to their end";
  EXPECT_EQ(client_->Get("/readyz")->status, 503);
  stuck_ = true;
  EXPECT_EQ(client_->Get("/healthz")->status, 503);
  EXPECT_EQ(client_->Get("/readyz")->status, 503);
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

TEST_F(LivePageTest, OperationsNeedValidJson) {
  EXPECT_EQ(client_->Post("/api/policy", R"({"name": "fcfs"})", "application/json")->status, 200);
  EXPECT_EQ(policy_, "fcfs");
  EXPECT_EQ(client_->Post("/api/policy", R"({"name": "x"})", "application/json")->body, "no such policy\n");
  EXPECT_EQ(client_->Post("/api/policy", R"({"nam": "x"})", "application/json")->status, 400);
  EXPECT_EQ(client_->Post("/api/policy", "[[[[", "application/json")->status, 400);
  EXPECT_EQ(client_->Post("/api/policy", R"({"name": "fcfs"})", "text/plain")->status, 415);
  EXPECT_EQ(client_->Post("/api/drain", R"({"worker_id": "w1"})", "application/json")->status, 200);
  EXPECT_EQ(drained_, "w1");
  EXPECT_EQ(client_->Post("/api/undrain", R"({"worker_id": "w1"})", "application/json")->status, 200);
  EXPECT_EQ(undrained_, "w1 by 127.0.0.1");
  EXPECT_EQ(client_->Post("/api/drain", R"({"worker_id": "w2"})", "application/json")->status, 404);
}

TEST(LivePageWatching, WhereThePortOnlyShowsNothingCanBeDone) {
  auto server = HttpServer::Bind({"127.0.0.1:0", nullptr, "", "", ""});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto history = std::make_shared<LiveHistory>();
  LiveSource source;
  source.alive = source.ready = [] { return absl::OkStatus(); };
  source.state = [] { return v1::ClusterState(); };
  AddLivePage(**server, history, std::move(source));
  (*server)->Start();
  const std::vector<std::string> parts = absl::StrSplit((*server)->address(), ':');
  httplib::Client client("127.0.0.1", std::stoi(parts.back()));
  EXPECT_EQ(client.Get("/metrics")->status, 200);
  EXPECT_EQ(client.Get("/api/policies")->body, "[]") << "the page has no buttons";
  for (const char* lever : {"/api/policy", "/api/drain", "/api/undrain"})
    EXPECT_EQ(client.Post(lever, "{}", "application/json")->status, 404) << lever;
  history->Close();
}

}  // namespace
}  // namespace bfio::router
