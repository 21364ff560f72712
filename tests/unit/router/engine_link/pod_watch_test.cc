// The pods of an InferencePool, as a scripted API server tells of them over TLS.
#include "router/engine_link/http/pod_watch.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/api_server.h"

namespace bfio::router {
namespace {

using testing::ApiServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;

class PodWatchTest : public ::testing::Test {
 protected:
  PodWatchTest() {
    api_.ListPools({ApiServer::Pool({8200, 8201})});
    api_.ListPods({ApiServer::Pod("a", "10.0.0.1"), ApiServer::Pod("b", "10.0.0.2", false),
                   ApiServer::Terminating(ApiServer::Pod("c", "10.0.0.3")), ApiServer::Pod("d", ""),
                   ApiServer::Pod("e", "10.0.0.5")});
  }
  void Start() {
    watch_.emplace(EngineAddress{.protocol = "http",
                                 .pool = "ns/vllm",
                                 .api_server = {"127.0.0.1", static_cast<uint16_t>(api_.port())},
                                 .api_files = api_.folder()},
                   [](const std::string& host) { return std::vector<std::string>{host}; });
  }
  // The servers now, or an error.
  std::vector<std::string> Servers() {
    const auto servers = watch_->Servers();
    if (!servers.ok()) return {"error: " + std::string(servers.status().message())};
    std::vector<std::string> names;
    for (const Address& server : *servers) names.push_back(server.ToString());
    return names;
  }
  // Waits for servers, or an error, that match.
  template <typename Matcher>
  void Await(const Matcher& matcher) {
    while (!::testing::Matches(matcher)(Servers())) absl::SleepFor(absl::Milliseconds(2));
  }
  void AwaitWatches(size_t count) {
    while (api_.watches().size() < count || api_.pool_watches() < count)
      absl::SleepFor(absl::Milliseconds(2));
  }
  static auto Only(const std::string& host) { return ElementsAre(host + ":8200", host + ":8201"); }
  static auto Error(const std::string& part) { return ElementsAre(HasSubstr(part)); }

  ApiServer api_{absl::StrCat(std::filesystem::temp_directory_path().string(), "/api_",
                              ::testing::UnitTest::GetInstance()->current_test_info()->name(), "_",
                              getpid())};
  std::optional<PodWatch> watch_;
};

TEST_F(PodWatchTest, ReadyPodsAreListedInPagesAndThenWatched) {
  Start();
  EXPECT_THAT(Servers(), ElementsAre("10.0.0.1:8200", "10.0.0.1:8201", "10.0.0.5:8200", "10.0.0.5:8201"));
  AwaitWatches(1);
  EXPECT_THAT(api_.lists(), SizeIs(3));
  EXPECT_EQ(api_.lists()[0], "app/name=vllm,b=");
  api_.SendPod("MODIFIED", ApiServer::Pod("b", "10.0.0.2"));
  Await(SizeIs(6));
  api_.SendPod("MODIFIED", ApiServer::Terminating(ApiServer::Pod("a", "10.0.0.1")));
  Await(SizeIs(4));
  api_.SendPod("DELETED", ApiServer::Pod("e", "10.0.0.5"));
  Await(Only("10.0.0.2"));
  api_.SendPod("MODIFIED", ApiServer::Pod("b", "fd00::2"));
  Await(Only("[fd00::2]"));
  api_.SendPod("ADDED", ApiServer::Pod("f", "10.0.0.6", false));
  api_.SendPod("MODIFIED", ApiServer::Pod("b", "10.0.0.2", false));
  Await(IsEmpty());
  // The server ends a watch from time to time; the next one goes on from what a bookmark says.
  api_.SendPod("BOOKMARK", Json::object());
  absl::SleepFor(PodWatch::kShortestWatch);
  api_.End();
  while (api_.watches().size() < 2) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_EQ(api_.watches()[1], absl::StrCat(api_.version()));
  api_.SendPod("MODIFIED", ApiServer::Pod("f", "10.0.0.6"));
  Await(Only("10.0.0.6"));
  EXPECT_THAT(api_.lists(), SizeIs(3)) << "once";
}

TEST_F(PodWatchTest, WhatBreaksIsListedAnewAndTheLastServersCountUntilThen) {
  Start();
  Await(SizeIs(4));
  size_t watches = 0;
  int host = 10;
  // Each time the list has another pod, which no event has told of.
  const auto anew = [&](const auto& breaks) {
    AwaitWatches(++watches);
    const std::string ip = absl::StrCat("10.0.0.", ++host);
    api_.ListPods({ApiServer::Pod("a", ip)});
    // Then the next attempt comes soon.
    api_.SendPod("BOOKMARK", Json::object());
    breaks();
    Await(Only(ip));
  };
  anew([&] {
    Json gone = {{"code", 410}, {"message", "too old resource version"}};
    api_.SendPod("ERROR", gone);
  });
  anew([&] {
    const std::string event = api_.Event("ADDED", ApiServer::Pod("z", "10.0.0.99"));
    api_.SendBytes(event.substr(0, event.size() / 2));
    api_.Cut();
  });
  anew([&] { api_.End(); });
  for (const std::string& garbage :
       {std::string("{\n"), std::string("\x80\n"), std::string("[]\n"), std::string("{\"type\":\"ADDED\"}\n"),
        api_.Event("ADDED", {{"metadata", {{"name", 7}}}}) + "\n",
        api_.Event("ADDED", ApiServer::Pod("y", "not-an-ip")) + "\n",
        std::string(R"({"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"1&x"}}})") + "\n",
        std::string(PodWatch::kMostEventBytes + 1, 'x')}) {
    anew([&] { api_.SendBytes(garbage); });
  }
  // A list without an end counts as none.
  anew([&] {
    api_.set_endless(true);
    api_.End();
    Await(Error("the list does not end"));
    api_.set_endless(false);
  });
  // Another pool: the same pods with other ports.
  anew([&] {
    api_.ListPools({ApiServer::Pool({8200, 8201})});
    api_.SendPool("MODIFIED", ApiServer::Pool({8300}));
  });
}

TEST_F(PodWatchTest, ThePoolsPortsAndTheTokenMayChange) {
  Start();
  Await(SizeIs(4));
  AwaitWatches(1);
  api_.ListPools({ApiServer::Pool({9})});
  api_.SendPool("MODIFIED", ApiServer::Pool({9}));
  Await(ElementsAre("10.0.0.1:9", "10.0.0.5:9"));
  AwaitWatches(2);
  api_.SetToken(std::string(1200, 'b'), /*tell=*/false);
  api_.Cut();
  Await(Error("status 401"));
  api_.SetToken(std::string(1200, 'b'));
  Await(ElementsAre("10.0.0.1:9", "10.0.0.5:9"));
  AwaitWatches(3);
  api_.ListPools({});
  api_.SendPool("DELETED", ApiServer::Pool({9}));
  Await(Error("there is no InferencePool vllm"));
}

TEST_F(PodWatchTest, PoolsThatCannotBeOnesAreNamed) {
  for (const auto& [pool, error] : std::vector<std::pair<Json, std::string>>{
           {Json::object(), "the pool selects by no labels"},
           {{{"spec", {{"selector", {{"matchLabels", {{"a", "b&c"}}}}}}}},
            "a label of the pool's selector is none"},
           {ApiServer::Pool({}), "the pool must have 1 to 8 targetPorts"},
           {ApiServer::Pool({1, 2, 3, 4, 5, 6, 7, 8, 9}), "the pool must have 1 to 8 targetPorts"},
           {ApiServer::Pool({0}), "a port of the pool is none"},
           {ApiServer::Pool({65536}), "a port of the pool is none"}}) {
    EXPECT_EQ(ReadPool(pool).status().message(), error);
  }
  EXPECT_EQ(ReadPod(Json::array()).status().message(), "a pod has no name");
}

}  // namespace
}  // namespace bfio::router
