// The router as Envoy's endpoint picker: the test plays Envoy, clients and the engines' requests, over the
// wire.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/integration/picker_fixture.h"
#include "tests/testing/api_server.h"
#include "tests/testing/kv_publisher.h"

namespace bfio::testing {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;

TEST_F(PickerTest, RequestsAreHeldUntilARankHasASlot) {
  HttpEngine one, two;
  Serve({&one, &two});
  std::map<std::string, HttpEngine*> engines = {{one.address(), &one}, {two.address(), &two}};
  Mutex mutex;
  std::map<std::string, int> placed;
  int64_t most = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 60; ++i) {
    clients.emplace_back([&, i] {
      Call call(*stub_, i % 2 == 0 ? ext_proc::BUFFERED : ext_proc::FULL_DUPLEX_STREAMED);
      const std::string place = call.Place();
      {
        MutexLock lock(&mutex);
        if (!engines.contains(place)) return;
        ++placed[place];
        most = std::max(most, ++engines[place]->running);
      }
      absl::SleepFor(absl::Milliseconds(20));
      --engines[place]->running;
      EXPECT_TRUE(call.End().ok());
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(placed[one.address()] + placed[two.address()], 60);
  EXPECT_THAT(placed, Each(Pair(::testing::_, Gt(15))));
  EXPECT_LE(most, kSlots);
  EXPECT_TRUE(cluster_->WaitUntilIdle());
  cluster_->StopCleanly();
}

// A prompt's length follows from the engine's counts of others.
TEST_F(PickerTest, HowManyTokensATextHasIsLearnt) {
  HttpEngine engine;
  int prompts = 1000;
  const auto count = [&] {
    ++prompts;
    engine.more_metrics =
        absl::StrCat("vllm:request_prompt_tokens_count{engine=\"0\"} ", prompts,
                     "\nvllm:request_prompt_tokens_sum{engine=\"0\"} ", 200 * prompts, "\n");
  };
  Serve({&engine});
  const std::string body = absl::StrCat(R"({"prompt":")", std::string(399, 'x'), R"(","max_tokens":9})");
  const auto load = [&] {
    Call call(*stub_, ext_proc::BUFFERED, "/v1/completions", body);
    EXPECT_EQ(call.Place(), engine.address());
    uint64_t tokens = 0;
    EXPECT_TRUE(cluster_->WaitFor("a load", [&](const v1::ClusterState& state) {
      if (state.workers_size() == 1) tokens = state.workers(0).load_tokens();
      return tokens > 0;
    }));
    count();
    call.End();
    EXPECT_TRUE(cluster_->WaitUntilIdle());
    return tokens;
  };
  EXPECT_NEAR(static_cast<double>(load()), 100, 5);
  EXPECT_TRUE(Eventually([&] { return load() > 195; }));
}

// An engine that clears its cache says so.
TEST_F(PickerTest, APromptReturnsToItsPrefixUntilTheEngineHasDroppedIt) {
  HttpEngine one, two;
  KvPublisher of_one, of_two;
  Serve({&one, &two}, {}, {},
        {absl::StrCat("kv_events: ", of_one.port()), absl::StrCat("kv_events: ", of_two.port())});
  const auto body = [](const std::string& end) {
    return absl::StrCat(R"({"prompt":")", std::string(4096, 'x'), end, R"(","max_tokens":9})");
  };
  std::vector<std::unique_ptr<Call>> busy;
  const auto place = [&](const std::string& end) {
    Call call(*stub_, ext_proc::BUFFERED, "/v1/completions", body(end));
    const std::string at = call.Place();
    call.End();
    const auto ended = [&](const v1::ClusterState& state) { return Running(state) == busy.size(); };
    EXPECT_TRUE(cluster_->WaitFor("its end", ended));
    return at;
  };
  const std::string first = place("a");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(place(absl::StrCat(i)), first);
  // Without the prefix the other one is chosen, which has nothing to do.
  busy.push_back(std::make_unique<Call>(*stub_, ext_proc::BUFFERED, "/v1/completions", body("c")));
  EXPECT_EQ(busy.back()->Place(), first);
  EXPECT_EQ(place("d"), first);
  uint64_t number = 0;
  EXPECT_TRUE(Eventually([&] {
    (first == one.address() ? of_one : of_two)
        .Send(number++, KvPublisher::Packed(KvPublisher::Json::parse(R"([1.5,[["AllBlocksCleared"]],0])")));
    return place("b") != first;
  }));
}

// Exactly: also what other clients have sent.
TEST_F(PickerTest, APromptGoesWhereTheEngineSaysThatItsPrefixIs) {
  HttpEngine one, two;
  KvPublisher of_one, of_two;
  const auto exact = [](const KvPublisher& of) {
    return absl::StrCat("prefixes: exact, kv_events: ", of.port());
  };
  Serve({&one, &two}, {}, {}, {exact(of_one), exact(of_two)});
  uint64_t numbers[] = {0, 0};
  const auto prompt = [](int n) {
    std::string text;
    while (text.size() < 512) absl::StrAppend(&text, 10'000 + n, ",");
    return text.substr(0, 512);
  };
  // In blocks of 16 tokens.
  const auto tell = [&](bool of_second, int n, const std::string& what) {
    const std::string text = prompt(n);
    KvPublisher::Json blocks = KvPublisher::Json::array();
    for (int i = 0; i < 32; ++i) blocks.push_back(1000 * n + i);
    KvPublisher::Json event = KvPublisher::Json::array({what, blocks});
    if (what == "BlockStored")
      event.insert(event.end(),
                   {nullptr, std::vector<uint8_t>(text.begin(), text.end()), 16, nullptr, "GPU"});
    (of_second ? of_two : of_one)
        .Send(numbers[of_second]++,
              KvPublisher::Packed(KvPublisher::Json::array({1.5, KvPublisher::Json::array({event}), 0})));
  };
  uint64_t load = 0;
  const auto goes_to_second = [&](int n) {
    Call call(*stub_, ext_proc::BUFFERED, "/v1/completions",
              absl::StrCat(R"({"prompt":")", prompt(n), R"(?","max_tokens":9})"));
    const std::string at = call.Place();
    EXPECT_TRUE(cluster_->WaitFor("a load", [&](const v1::ClusterState& state) {
      load = 0;
      for (const auto& worker : state.workers()) load += worker.load_tokens();
      return load > 0;
    }));
    call.End();
    EXPECT_TRUE(cluster_->WaitUntilIdle());
    return at == two.address();
  };
  // New prompts each time, because a placement teaches the router, too; more than once, because it may not
  // have heard of all yet.
  int next = 0;
  const auto all_right = [&] {
    const int first = next;
    const std::vector<bool> of_second = {false, false, true, false, true, true, false, true};
    for (const bool second : of_second) {
      tell(!second, next, "BlockStored");
      tell(!second, next, "BlockRemoved");
      tell(second, next++, "BlockStored");
    }
    absl::SleepFor(absl::Seconds(1));
    int right = 0;
    for (size_t i = 0; i < of_second.size(); ++i)
      right += goes_to_second(first + static_cast<int>(i)) == of_second[i] ? 1 : 0;
    return right == std::ssize(of_second);
  };
  bool exactly = false;
  while (!exactly && next < 160) exactly = all_right();
  EXPECT_TRUE(exactly);
  EXPECT_NEAR(static_cast<double>(load), 514, 10) << "a byte is a token here";
  EXPECT_GT(one.renders * two.renders, 0);
}

TEST_F(PickerTest, WhatStepsCostIsLearntFromWhatRanksReportOfThem) {
  HttpEngine one, two;
  KvPublisher of_one, of_two;
  const auto barrier = [](const KvPublisher& of) {
    return absl::StrCat("barrier: moe, step_metrics: ", of.port());
  };
  Serve({&one, &two}, {}, {}, {barrier(of_one), barrier(of_two)});
  Call call(*stub_, ext_proc::BUFFERED);
  EXPECT_NE(call.Place(), "");
  uint64_t number = 0;
  std::optional<double> ratio;
  EXPECT_TRUE(Eventually([&] {
    // 2 ms and 10 us per row; each engine counts the tokens that it says it has generated.
    for (HttpEngine* const engine : {&one, &two}) {
      const int64_t rows = 100 + static_cast<int64_t>(number % 7) * 50;
      engine->generated += rows;
      (engine == &one ? of_one : of_two)
          .Send(number, KvPublisher::Packed(
                            {{"version", 1},
                             {"wall_time", 2e-3 + 1e-5 * static_cast<double>(rows)},
                             {"scheduled_requests",
                              {{"num_decode_requests", rows}, {"sum_decode_kv_tokens", 1000 * rows}}}}));
    }
    absl::SleepFor(absl::Milliseconds(8));
    if (++number % 32 == 0) {
      const v1::ClusterState state = cluster_->State();
      for (const auto& group : state.groups())
        if (group.has_step_predicted_ratio()) ratio = group.step_predicted_ratio();
    }
    return ratio.has_value();
  }));
  EXPECT_NEAR(ratio.value_or(0), 1, 0.05);
}

TEST_F(PickerTest, TheRequestsOfAServerThatIsGoneGoElsewhereOrEnd) {
  HttpEngine stays;
  auto goes = std::make_unique<HttpEngine>();
  const std::string gone = goes->address();
  Serve({&stays, goes.get()});
  std::vector<std::unique_ptr<Call>> here, there;
  for (int i = 0; i < 2 * kSlots; ++i) {
    auto call = std::make_unique<Call>(*stub_, ext_proc::BUFFERED);
    (call->Place() == gone ? there : here).push_back(std::move(call));
  }
  EXPECT_THAT(there, SizeIs(kSlots));
  Call held(*stub_, ext_proc::BUFFERED);
  goes.reset();
  // Envoy answers for the server.
  for (const auto& call : there) call->End(503, "remote_connection_failure");
  ASSERT_TRUE(cluster_->WaitFor("a rank that is gone",
                                [](const v1::ClusterState& state) { return Serving(state) == 1; }));
  for (const auto& call : here) call->End();
  EXPECT_EQ(held.Place(), stays.address());
  held.End();
  EXPECT_TRUE(cluster_->WaitUntilIdle());
}

// Clients come and go behind Envoy as fast as they like; each of their streams may end anywhere.
TEST_F(PickerTest, StreamsThatAreCancelledAnywhereLeaveNothing) {
  HttpEngine engine;
  Serve({&engine});
  const std::string body(size_t{32} << 10, ' ');
  for (int i = 0; i < 2000; ++i) {
    grpc::ClientContext context;
    const auto stream = stub_->Process(&context);
    ext_proc::ProcessingResponse answer;
    if (i % 5 > 0)
      stream->Write(RequestHeaders(ext_proc::BUFFERED, ext_proc::NONE, {{":path", "/v1/completions"}}));
    if (i % 5 > 1) stream->Write(RequestBody(body, false));
    if (i % 5 > 2) stream->Write(RequestBody("{}", true));
    if (i % 5 > 3 && i % 100 == 4) stream->Read(&answer);
    context.TryCancel();
  }
  Call other(*stub_, ext_proc::BUFFERED);
  EXPECT_EQ(other.Place(), engine.address());
  EXPECT_TRUE(other.End().ok());
  EXPECT_TRUE(cluster_->WaitUntilIdle());
  EXPECT_TRUE(cluster_->WaitFor("no stream", [](const v1::ClusterState& state) {
    return std::all_of(state.ports().begin(), state.ports().end(), [](const v1::PortState& port) {
      return port.port() != "picker" || port.streams() == 0;
    });
  }));
  cluster_->StopCleanly();
}

TEST_F(PickerTest, OnSigtermHeldRequestsAreRefusedAndOthersLetPass) {
  HttpEngine engine;
  Serve({&engine}, {"--drain_timeout=1s"});
  std::vector<std::unique_ptr<Call>> running;
  for (int i = 0; i < kSlots; ++i) {
    running.push_back(std::make_unique<Call>(*stub_, ext_proc::BUFFERED));
    ASSERT_EQ(running.back()->Place(), engine.address());
  }
  Call held(*stub_, ext_proc::FULL_DUPLEX_STREAMED);
  ASSERT_TRUE(cluster_->WaitFor("one that waits",
                                [](const v1::ClusterState& state) { return state.waiting_requests() == 1; }));
  cluster_->router().Signal(SIGTERM);
  EXPECT_EQ(held.Place(), "");
  EXPECT_EQ(held.answer.immediate_response().status().code(), 503u);
  for (auto& call : running) EXPECT_TRUE(call->stream->Finish().ok()) << "its response is untouched";
  EXPECT_EQ(cluster_->router().Wait(absl::Seconds(60)), 0);
}

TEST_F(PickerTest, ProbesSeeWhetherThereAreRanks) {
  HttpEngine engine;
  Serve({&engine});
  const auto health = grpc::health::v1::Health::NewStub(channel_);
  for (const char* service : {"liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", ""}) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_TRUE(health->Check(&context, request, &response).ok()) << service;
    EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING) << service;
  }
}

// Prompts that one server computes for others: the router calls it while Envoy waits, and Envoy sends the
// request with the hand-off to the rank that is chosen afterwards.
class PickerHandOffTest : public PickerTest {
 protected:
  void SetUp() override {
    for (HttpEngine* engine : {prefill_.get(), &one_, &two_}) engine->kv = kv_;
    Serve({prefill_.get(), &one_, &two_}, {"--hand_over=all"}, {"prefill", "decode", "decode"});
    ASSERT_TRUE(ServingRanks(3));
  }
  bool ServingRanks(size_t ranks) {
    return cluster_->WaitFor(absl::StrCat(ranks, " ranks"),
                             [ranks](const v1::ClusterState& state) { return Serving(state) == ranks; });
  }
  using Tokens = std::vector<uint32_t>;
  static Tokens Prompt(int i) { return {5, 6, 7, 2'000 + static_cast<uint32_t>(i)}; }
  static std::string Body(int i, const std::string& more = "") {
    return absl::StrCat(R"({"prompt":[)", absl::StrJoin(Prompt(i), ","), R"(],"max_tokens":)", 2 + i % 9,
                        more, "}");
  }
  // Sends a request as Envoy does, and expects the tokens of an undisturbed engine.
  void ExpectRightTokens(int i, const std::string& more = "") {
    Call call(*stub_, i % 2 == 0 ? ext_proc::BUFFERED : ext_proc::FULL_DUPLEX_STREAMED, "/v1/completions",
              Body(i, more));
    const std::string place = call.Place();
    ASSERT_THAT(place, ::testing::AnyOf(one_.address(), two_.address())) << i << more;
    httplib::Client engine("http://" + place);
    const auto answer = engine.Post("/v1/completions", call.Forwarded(), "application/json");
    ASSERT_TRUE(answer) << i << more;
    EXPECT_EQ(nlohmann::json::parse(answer->body).at("tokens").get<Tokens>(),
              TokensAfter(Prompt(i), 2 + i % 9))
        << i << more;
    EXPECT_TRUE(call.End().ok());
  }
  void ExpectRightTokensOfMany(
      int count, const std::function<void()>& meanwhile = [] {}) {
    std::vector<std::thread> clients;
    for (int i = 0; i < count; ++i) clients.emplace_back([this, i] { ExpectRightTokens(i); });
    meanwhile();
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(kv_->count(&HandedOverKv::wrong), 0) << "a hand-off was used twice, or late";
    EXPECT_EQ(kv_->count(&HandedOverKv::fatal), 0);
  }
  int used() { return kv_->count(&HandedOverKv::used); }

  const std::shared_ptr<HandedOverKv> kv_ = std::make_shared<HandedOverKv>();
  std::unique_ptr<HttpEngine> prefill_ = std::make_unique<HttpEngine>();
  HttpEngine one_, two_;
};

TEST_F(PickerHandOffTest, EachPromptIsComputedThereAndDecodedHere) {
  ExpectRightTokensOfMany(60);
  EXPECT_EQ(kv_->count(&HandedOverKv::made), 60);
  EXPECT_EQ(used(), 60);
  EXPECT_EQ(prefill_->completions, 60);
  EXPECT_EQ(one_.completions + two_.completions, 60);
  const auto asked = nlohmann::json::parse(prefill_->prefill.body);
  EXPECT_EQ(asked.at("max_tokens"), 1);
  EXPECT_EQ(asked.at("stream"), false);
  EXPECT_TRUE(cluster_->WaitUntilIdle());
}

// SGLang: both calls name a room, and begin together.
class PickerRoomsTest : public PickerHandOffTest {
 protected:
  void SetUp() override {
    for (HttpEngine* engine : {prefill_.get(), &one_, &two_}) engine->rooms = rooms_;
    prefill_->computes = true;
    const std::string sglang = "kv_connector: sglang";
    Serve({prefill_.get(), &one_, &two_}, {}, {"prefill", "decode", "decode"},
          {sglang + ", kv_bootstrap: \"10.0.0.9:9000\"", sglang, sglang});
    ASSERT_TRUE(ServingRanks(3));
  }
  const std::shared_ptr<MeetingRooms> rooms_ = std::make_shared<MeetingRooms>();
};

TEST_F(PickerRoomsTest, EachPromptIsComputedInARoomWhereItsDecodeRankWaits) {
  ExpectRightTokensOfMany(40);
  ExpectRightTokens(40, R"(,"max_completion_tokens":1)");
  EXPECT_EQ(rooms_->used, 41);
  EXPECT_EQ(rooms_->wrong, 0);
  EXPECT_EQ(prefill_->completions, 41);
  EXPECT_TRUE(cluster_->WaitUntilIdle());
  Call several(*stub_, ext_proc::BUFFERED, "/v1/completions", Body(1, R"(,"n":2)"));
  EXPECT_EQ(several.Place(), "");
  EXPECT_EQ(several.answer.immediate_response().status().code(), 400u);
}

// llm-d: a sidecar of the decode server calls the prefill server that the request names.
class PickerSidecarTest : public PickerHandOffTest {
 protected:
  void SetUp() override {
    const std::string llm_d = "kv_connector: llm-d";
    Serve({prefill_.get(), &one_, &two_}, {"--hand_over=all"}, {"prefill", "decode", "decode"},
          {llm_d, llm_d, llm_d});
    ASSERT_TRUE(ServingRanks(3));
  }
  // The header's value; "removed" where a client's own is.
  std::string Prefiller(int i, const std::string& more = "") {
    Call call(*stub_, i % 2 == 0 ? ext_proc::BUFFERED : ext_proc::FULL_DUPLEX_STREAMED, "/v1/completions",
              Body(i, more));
    EXPECT_THAT(call.Place(), ::testing::AnyOf(one_.address(), two_.address()));
    const auto& mutation = (call.answer.has_request_body() ? call.answer.request_body().response()
                                                           : call.answer.request_headers().response())
                               .header_mutation();
    EXPECT_EQ(call.Forwarded(), Body(i, more));
    std::string value = std::count(mutation.remove_headers().begin(), mutation.remove_headers().end(),
                                   "x-prefiller-host-port") > 0
                            ? "removed"
                            : "kept";
    for (const auto& option : mutation.set_headers())
      if (option.header().key() == "x-prefiller-host-port") value = option.header().raw_value();
    EXPECT_TRUE(call.End().ok());
    return value;
  }
};

TEST_F(PickerSidecarTest, TheRequestNamesThePrefillServer) {
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Prefiller(i), prefill_->address());
  EXPECT_EQ(Prefiller(1, R"(,"n":2)"), "removed");
  EXPECT_EQ(prefill_->prefills, 0);
  EXPECT_TRUE(cluster_->WaitUntilIdle());
}

TEST_F(PickerHandOffTest, WhatIsNotHandedOverIsComputedWhereItDecodes) {
  for (const char* more : {R"(,"n":2)", R"(,"echo":true)", R"(,"max_completion_tokens":1)"})
    ExpectRightTokens(0, more);
  EXPECT_EQ(prefill_->completions, 0);
  // What is wrong with a request, the engine that decodes says.
  for (const int status : {400, 500, 200}) {
    prefill_->prefill_status = status;
    prefill_->hands_over = false;
    ExpectRightTokens(status);
  }
  EXPECT_EQ(prefill_->completions, 3);
  EXPECT_EQ(used(), 0);
  prefill_->hands_over = true;
  // A server that is full for now is asked again.
  prefill_->prefill_status = 503;
  std::thread client([this] { ExpectRightTokens(1); });
  EXPECT_TRUE(Eventually([this] { return prefill_->completions >= 5; }));
  EXPECT_EQ(used(), 0);
  prefill_->prefill_status = 200;
  client.join();
  EXPECT_EQ(used(), 1);
}

TEST_F(PickerHandOffTest, WithoutAPrefillServerTheDecodeServersComputePrompts) {
  const int port = prefill_->port();
  ExpectRightTokensOfMany(40, [&] {
    EXPECT_TRUE(Eventually([&] { return kv_->count(&HandedOverKv::made) >= 5; }));
    prefill_->Stop();
  });
  EXPECT_LT(used(), 40);
  EXPECT_TRUE(ServingRanks(2));
  // It is used again when it is back.
  prefill_ = std::make_unique<HttpEngine>(1, 0, port);
  prefill_->kv = kv_;
  EXPECT_TRUE(ServingRanks(3));
  const int before = used();
  ExpectRightTokensOfMany(20);
  EXPECT_EQ(used(), before + 20);
  EXPECT_TRUE(cluster_->WaitUntilIdle());
}

TEST_F(PickerHandOffTest, ClientsThatLeaveWhileTheirPromptsAreComputedFreeTheirSlots) {
  prefill_->prefill_ms = 100'000;
  {
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 2 * kSlots; ++i)
      calls.push_back(std::make_unique<Call>(*stub_, ext_proc::BUFFERED, "/v1/completions", Body(i)));
    EXPECT_TRUE(Eventually([this] { return prefill_->prefills == kSlots; }));
    for (const auto& call : calls) call->context.TryCancel();
    for (const auto& call : calls) call->End();
  }
  EXPECT_TRUE(cluster_->WaitUntilIdle());
  prefill_->prefill_ms = 1;
  ExpectRightTokensOfMany(2 * kSlots);
  EXPECT_EQ(used(), 2 * kSlots);
}

TEST_F(PickerTest, APodThatTerminatesEndsItsRequestsAndGetsNoMore) {
  HttpEngine one;
  ApiServer api(TestDirectory() + "/api");
  api.ListPools({ApiServer::Pool({one.port()})});
  const auto pod = ApiServer::Pod("one", "127.0.0.1");
  api.ListPods({pod});
  Serve({}, {"--config=" + WriteFile("pool.yaml", absl::StrCat("engines:\n- {", api.settings(),
                                                               ", slots: ", kSlots, "}\n"))});
  Call call(*stub_, ext_proc::BUFFERED);
  EXPECT_EQ(call.Place(), one.address());
  while (api.watches().empty()) absl::SleepFor(absl::Milliseconds(2));
  api.SendPod("MODIFIED", ApiServer::Terminating(pod));
  EXPECT_TRUE(cluster_->WaitFor("a rank that drains", [](const v1::ClusterState& state) {
    return Serving(state) == 0 && Running(state) == 1;
  }));
  EXPECT_TRUE(call.End().ok());
  api.SendPod("DELETED", pod);
  EXPECT_TRUE(
      cluster_->WaitFor("no rank", [](const v1::ClusterState& state) { return state.workers_size() == 0; }));
  // It is back, such as a StatefulSet's.
  api.SendPod("ADDED", pod);
  EXPECT_TRUE(Eventually([&] {
    Call again(*stub_, ext_proc::BUFFERED);
    const bool placed = again.Place() == one.address();
    if (placed) again.End();
    return placed;
  }));
}

// All calls to engines: health, metrics and prompts. CA and token are replaced while the router runs.
TEST_F(PickerTest, EnginesAreCalledOverTlsWithCertificateAndToken) {
  const std::string certs = TestDirectory() + "/http-certs", secret = "http-s3cr3t-http-s3cr3t";
  MakeCerts(certs, "--workers=w0 --for-tests");
  HttpEngine prefill(1, 0, 0, certs), decode(1, 0, 0, certs);
  for (HttpEngine* engine : {&prefill, &decode}) engine->token = secret;
  prefill.kv = std::make_shared<HandedOverKv>();
  const std::string pair = absl::StrCat(",cert=", certs, "/w0.crt,key=", certs, "/w0.key");
  const auto config = [&](const std::string& ca, const std::string& pair, const std::string& token) {
    return Config(
        {prefill.address(), decode.address()}, {"prefill", "decode"},
        absl::StrCat(", tls: \"ca=", ca, pair, "\"", token.empty() ? "" : ", token_file: " + token));
  };
  const std::string good_ca = certs + "/worker-ca.crt", good = WriteFile("good-token", secret);
  const std::string token = WriteFile("token", "wr0ng-s3cr3t-wr0ng-s3cr3t");
  for (const auto& [ca, pair, token, expected] : std::vector<std::array<std::string, 4>>{
           {good_ca, pair, good, "2 ranks, 0 faults"},
           {good_ca, pair, token, "GET /v1/models: status 401"},
           {good_ca, pair, "", "GET /v1/models: status 401"},
           {certs + "/client-ca.crt", pair, good, "TLS: certificate verify failed"},
           {good_ca, "", good, "certificate required"}}) {
    const RunResult check = RunProgram("bfio_router", {"--check_config", config(ca, pair, token)});
    EXPECT_THAT(check.out + check.err, HasSubstr(expected));
    EXPECT_THAT(check.out + check.err, ::testing::Not(HasSubstr("s3cr3t")));
  }
  const std::string ca = WriteFile("ca", ReadFile(certs + "/client-ca.crt"));
  Process router("bfio_router",
                 {"--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--http_listen=", "--hand_over=all",
                  "--picker_listen=" + port_.address(), config(ca, pair, token)});
  const auto logs = [&](const char* text) {
    return Eventually([&] { return absl::StrContains(router.Stderr(), text); });
  };
  ASSERT_TRUE(logs("certificate verify failed")) << router.Stderr();
  WriteFile("ca", ReadFile(good_ca));
  ASSERT_TRUE(logs("status 401")) << router.Stderr();
  WriteFile("token", secret);
  ASSERT_TRUE(logs("it computes prompts for other servers")) << router.Stderr();
  stub_ = ext_proc::ExternalProcessor::NewStub(
      grpc::CreateChannel(port_.address(), grpc::InsecureChannelCredentials()));
  EXPECT_TRUE(Eventually([&] {
    Call call(*stub_, ext_proc::BUFFERED, "/v1/completions", R"({"prompt":[1,2,3],"max_tokens":2})");
    EXPECT_EQ(call.Place(), decode.address());
    call.End();
    return prefill.prefills > 0;
  }));
  EXPECT_EQ(prefill.prefill.get_header_value("Authorization"), "Bearer " + secret);
  EXPECT_THAT(router.Stderr(), ::testing::Not(HasSubstr("s3cr3t")));
}

TEST_F(PickerTest, EnginesMayBeCheckedFirst) {
  HttpEngine one(2), other;
  other.models = R"({"data":[{"id":"n","max_model_len":4096}]})";
  const HeldPort closed;
  const std::string rank = ": model m, 4 slots, 16000 KV tokens, load 0 requests and 4000 tokens\n";
  const RunResult good = RunProgram("bfio_router", {"--check_config", Config({one.address()})});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(good.out, absl::StrCat("http://", one.address(), " rank 0", rank, "http://", one.address(),
                                   " rank 1", rank, "bfio_router: 2 ranks, 0 faults\n"));
  const RunResult bad = RunProgram(
      "bfio_router", {"--check_config", Config({one.address(), other.address(), closed.address()})});
  EXPECT_EQ(bad.code, 1) << bad.err;
  EXPECT_THAT(bad.out, HasSubstr(absl::StrCat(
                           "\nwrong: http://", other.address(), ": model n, but http://", one.address(),
                           " has m\nwrong: http://", closed.address(),
                           ": GET /v1/models: cannot connect (is it started, and is this its port?)\n")));
  EXPECT_THAT(bad.out, ::testing::EndsWith("\nbfio_router: 3 ranks, 2 faults\n"));
  for (const char* wrong :
       {"--policy=foo", "--election_etcd=etcd:2379", "--decision_log=/no/such/folder/log"})
    EXPECT_EQ(RunProgram("bfio_router", {"--check_config", wrong}).code, 2) << wrong;
  other.models = std::string(one.models);
  const RunResult roles = RunProgram(
      "bfio_router",
      {"--check_config", "--workers=2", Config({one.address(), other.address()}, {"prefill", "decode"})});
  EXPECT_THAT(roles.out, HasSubstr("KV tokens, prompts for other servers, load"));
  EXPECT_THAT(roles.out, ::testing::EndsWith("\nwrong: the engines: 1 ranks found, but --min_ranks=2\n"
                                             "bfio_router: 3 ranks, 1 faults\n"));
}

}  // namespace
}  // namespace bfio::testing
