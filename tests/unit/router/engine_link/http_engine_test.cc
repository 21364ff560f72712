// An engine behind Envoy: what the router reads of it, and how requests are placed there.
#include "router/engine_link/http/http_engine.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/http/http_client.h"
#include "common/telemetry/metrics/engine_metrics.h"
#include "nlohmann/json.hpp"
#include "router/requests/placed_request.h"
#include "tests/testing/http_engine.h"
#include "tests/testing/latch.h"
#include "tests/testing/sockets.h"

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
  testing::Latch done{1};
  std::optional<Answer> answer;
  call([&](Answer given) {
    answer = std::move(given);
    done.count_down();
  });
  done.wait();
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
                                             .slots = 8,
                                             .kv_tokens = 16'000,
                                             .max_sequence_tokens = 4096,
                                             .kv_block_tokens = 16,
                                             .model = "m",
                                             .running = {{0, 4000, 0}, {0, 4000, 0}}}));
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
    explicit Placed(std::string body = "") : PlacedRequest(0), body(std::move(body)) {}
    void SendTo(const Place& place, OnEnd on_end) const override {
      at = place;
      std::move(on_end)(end);
    }
    Call ToPrefill() const override { return {"/v1/completions", "Bearer secret", body}; }

    mutable Place at;
    absl::Status end;
    const std::string body;
  };
  testing::HttpEngine engine;
  const auto client = ClientOf(engine.port());
  EngineCall call;
  const auto end_of = [&](PassedPtr message) {
    call.passed = {.on = true, .message = std::move(message)};
    return Await<absl::StatusOr<EngineEnd>>([&](auto done) {
      client->Generate(call, 2, "name", {[](const EngineTokens&) {}, std::move(done)});
    });
  };
  const auto placed = std::make_shared<Placed>();
  const auto end = end_of(placed);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(placed->at.server, engine.address());
  EXPECT_EQ(placed->at.rank, 2);
  placed->end = absl::UnavailableError("refused");
  EXPECT_TRUE(absl::IsUnavailable(end_of(placed).status()));
  EXPECT_EQ(end_of(nullptr).status().code(), absl::StatusCode::kFailedPrecondition);
  call.hand_off = std::make_shared<const RequestHandOff>(RequestHandOff{"parameters"});
  placed->end = absl::OkStatus();
  EXPECT_TRUE(end_of(placed).ok());
  ASSERT_EQ(placed->at.members.size(), 1u);
  EXPECT_EQ(placed->at.members[0].second, "parameters");
  // A prompt for another engine.
  call.hand_off = nullptr;
  call.hands_over = true;
  EXPECT_TRUE(absl::IsAborted(end_of(placed).status())) << "its client has left";
  engine.kv = std::make_shared<testing::HandedOverKv>();
  const auto handed_over = end_of(std::make_shared<Placed>(R"({"prompt":[1,2],"max_tokens":9})"));
  ASSERT_TRUE(handed_over.ok()) << handed_over.status();
  EXPECT_EQ(engine.kv->Fetch(handed_over->hand_off->parameters, {1, 2}),
            testing::HandedOverKv::Fetched::kRight);
  EXPECT_EQ(engine.prefill.get_header_value("Authorization"), "Bearer secret");
  EXPECT_EQ(engine.prefill.get_header_value("X-data-parallel-rank"), "2");
}

TEST(HttpEngine, ItSaysWhichTokensAPromptHasWhereThatIsSet) {
  testing::HttpEngine one, two;
  const auto renderers = std::make_shared<Renderers>();
  const auto client = [&](const testing::HttpEngine& engine, bool exact) {
    EngineAddress address = {.protocol = "http",
                             .server = {"127.0.0.1", static_cast<uint16_t>(engine.port())}};
    address.exact_prefixes = exact;
    return NewHttpEngine(address, std::make_shared<TextRatio>(), renderers);
  };
  const auto ask = [&](const std::string& path, const std::string& body, const std::string& tenant = "t") {
    return Await<absl::StatusOr<RenderedPrompt>>([&](auto done) {
      renderers->Ask(tenant, {path, "Bearer s", body}, std::move(done));
    });
  };
  auto text_only = client(one, false);
  EXPECT_FALSE(renderers->any());
  EXPECT_TRUE(absl::IsUnavailable(ask("/v1/completions", "{}").status()));
  auto first = client(one, true), second = client(two, true);
  one.token = "s";
  two.token = "s";
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(ask("/v1/completions", R"({"prompt":"AB"})")->tokens, (std::vector<uint32_t>{65, 66}));
  EXPECT_EQ(ask("/v1/chat/completions", R"({"messages":[]})")->tokens, (std::vector<uint32_t>{91, 93}));
  EXPECT_GT(one.renders * two.renders, 0) << "in turn";
  // One that is gone does not matter.
  two.Stop();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(ask("/v1/completions", R"({"prompt":"AB"})").ok());
  one.render_status = 404;
  EXPECT_FALSE(ask("/v1/completions", R"({"prompt":"AB"})").ok());
  first.reset(), second.reset();
  EXPECT_FALSE(renderers->any());
}

TEST(Renderers, ATenantHasAShareOfTheCalls) {
  Renderers renderers;
  std::vector<Renderers::Done> asked;
  renderers.Add(&asked, [&](const auto&, Renderers::Done done) { asked.push_back(std::move(done)); });
  int refused = 0;
  const auto ask = [&](const std::string& tenant) {
    renderers.Ask(tenant, {}, [&](const absl::StatusOr<RenderedPrompt>& prompt) { refused += !prompt.ok(); });
  };
  for (int64_t i = 0; i < Renderers::kMostCalls; ++i) ask("greedy");
  EXPECT_EQ(refused, Renderers::kMostCalls / 2);
  ask("other");
  EXPECT_EQ(refused, Renderers::kMostCalls / 2);
  for (Renderers::Done& done : std::exchange(asked, {})) std::move(done)(RenderedPrompt());
  ask("greedy");
  EXPECT_EQ(asked.size(), 1u);
  std::move(asked.front())(RenderedPrompt());
}

TEST(Renderers, AnEngineThatDoesNotAnswerDelaysFew) {
  Renderers renderers;
  std::vector<Renderers::Done> hang, works;
  for (auto* const at : {&hang, &works})
    renderers.Add(at, [at](const auto&, Renderers::Done done) { at->push_back(std::move(done)); });
  int failed = 0;
  const auto ask = [&](int times) {
    for (int i = 0; i < times; ++i) {
      renderers.Ask("t", {}, [&](const absl::StatusOr<RenderedPrompt>& prompt) { failed += !prompt.ok(); });
      for (Renderers::Done& done : std::exchange(works, {})) std::move(done)(RenderedPrompt());
    }
  };
  ask(4);
  EXPECT_EQ(hang.size(), 2u);
  absl::SleepFor(Renderers::kSlow + absl::Milliseconds(50));
  ask(4);
  EXPECT_EQ(hang.size(), 2u) << "the other one is asked";
  for (Renderers::Done& done : std::exchange(hang, {})) std::move(done)(absl::DeadlineExceededError("late"));
  EXPECT_EQ(failed, 2);
  ask(4);
  EXPECT_TRUE(hang.empty()) << "it has a pause";
  renderers.Remove(&works);
  ask(1);
  EXPECT_EQ(failed, 3) << "nobody waits for it";
}

TEST(RenderedFrom, OnePromptAndItsTokens) {
  const auto rendered = [](const std::string& body, int status = 200) {
    return RenderedFrom(HttpClient::Answer{status, body});
  };
  for (const char* const one :
       {R"({"token_ids":[1,2],"features":null,"sampling_params":{"stop":["token_ids"],"token_ids":[8]}})",
        R"([{"token_ids":[1,2],"token_offsets":[[0,1],[1,2]]}])"}) {
    const auto prompt = rendered(one);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(prompt->tokens, (std::vector<uint32_t>{1, 2}));
    EXPECT_FALSE(prompt->has_media);
  }
  EXPECT_TRUE(rendered(R"({"token_ids":[1],"features":{"mm_hashes":{"image":["x"]}}})")->has_media);
  for (const char* const bad :
       {"", "{", "[]", "{}", R"({"token_ids":[]})", R"({"token_ids":5})", R"({"token_ids":[-1]})",
        R"({"token_ids":["a"]})", R"({"token_ids":[1.5]})", R"([{"token_ids":[1]},{"token_ids":[2]}])"})
    EXPECT_FALSE(rendered(bad).ok()) << bad;
  EXPECT_FALSE(rendered(R"({"token_ids":[1]})", 404).ok());
  EXPECT_TRUE(absl::IsUnavailable(RenderedFrom(absl::UnavailableError("gone")).status()));
}

const KvSource kNixl = {.connector = "NixlConnector", .engine = "e_dp1", .most_blocks = 3, .least_blocks = 2};
// As vLLM 0.32 answers for a prompt of two blocks.
constexpr char kAnswer[] =
    R"({"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[69,70]],"remote_engine_id":"e_dp1",)"
    R"("remote_request_id":"r","remote_host":"localhost","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,)"
    R"("remote_num_tokens":200,"remote_blocks_expiry_time":null,"transfer_mode":"pull"})";

std::string Patched(const char* patch) {
  auto fields = nlohmann::json::parse(kAnswer);
  fields.merge_patch(nlohmann::json::parse(patch));
  return fields.dump();
}

TEST(KvConnectorTest, ARightAnswerIsPassedOn) {
  const auto hand_off = HandOffFrom(kNixl, kAnswer);
  ASSERT_TRUE(hand_off.ok()) << hand_off.status();
  EXPECT_EQ((*hand_off)->parameters, kAnswer);
  EXPECT_EQ((*hand_off)->engine, "e_dp1");
  EXPECT_EQ((*hand_off)->source, "localhost:5600");
  // Of several groups of layers, of which one keeps only its last blocks; in one list; from another rank.
  for (const char* const patch :
       {R"({"remote_block_ids":[[1,2,3],[0,0,2],[]]})", R"({"remote_block_ids":[4,5]})",
        R"({"remote_block_ids":[[1]],"dcp_size":2})", R"({"remote_engine_id":"e_dp0"})",
        R"({"remote_engine_id":"e"})", R"({"x":{"y":[1]}})"})
    EXPECT_TRUE(HandOffFrom(kNixl, Patched(patch)).ok()) << patch;
  const auto none = HandOffFrom(kNixl, "");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ((*none)->parameters, "");
}

TEST(KvConnectorTest, WhatCannotBeRightIsNamed) {
  for (const auto& [patch, why] :
       {std::pair(R"({"remote_block_ids":[[1,2,3,4]]})", "has 4 blocks"),
        std::pair(R"({"remote_block_ids":[[7,7]]})", "twice"),
        std::pair(R"({"remote_block_ids":[[-1]]})", "numbers of blocks"),
        std::pair(R"({"remote_block_ids":[["1"]]})", "numbers of blocks"),
        std::pair(R"({"remote_block_ids":[[1],2]})", "numbers of blocks"),
        std::pair(R"({"remote_block_ids":[[],[1]]})", "has 1 blocks; the prompt has at least 2"),
        std::pair(R"({"remote_block_ids":[[]]})", "has 0 blocks"),
        std::pair(R"({"remote_block_ids":[]})", "has 0 blocks"),
        std::pair(R"({"remote_block_ids":{"0":1}})", "no blocks"),
        std::pair(R"({"remote_block_ids":null})", "missing"),
        std::pair(R"({"remote_engine_id":"f_dp1"})", "is f_dp1, and the server's is e"),
        std::pair(R"({"remote_engine_id":null})", "missing"),
        std::pair(R"({"remote_engine_id":7})", "not a name"),
        std::pair(R"({"remote_request_id":null})", "names the KV"),
        std::pair(R"({"remote_host":null})", "missing"),
        std::pair(R"({"remote_host":["a"]})", "not a name"),
        std::pair(R"({"remote_port":0})", "remote_port"),
        std::pair(R"({"remote_port":"5600"})", "remote_port"),
        std::pair(R"({"tp_size":0})", "tp_size"),
        std::pair(R"({"do_remote_prefill":false})", "do_remote_prefill"),
        std::pair(R"({"do_remote_prefill":1})", "do_remote_prefill"),
        std::pair(R"({"do_remote_decode":true})", "do_remote_decode")}) {
    const absl::Status status = HandOffFrom(kNixl, Patched(patch)).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << patch;
    EXPECT_TRUE(IsWrongHandOff(status)) << patch;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why)) << patch;
  }
  for (const char* const text : {"{", "[1]", "null", "7"})
    EXPECT_FALSE(HandOffFrom(kNixl, text).ok()) << text;
}

TEST(KvConnector, SaysWhatBothCallsAsk) {
  const KvSource source = {"MooncakeConnector", "p_dp1", {"10.0.0.1", 8998}, "t-7"};
  const KvConnector& mooncake = KvConnectorOf(source.connector);
  EXPECT_EQ(mooncake.ToCompute(source),
            R"({"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"t-7"})");
  const auto to_decode = [](const KvSource& from, const std::string& answer) {
    const auto hand_off = HandOffFrom(from, answer);
    return hand_off.ok() ? (*hand_off)->parameters : std::string(hand_off.status().message());
  };
  EXPECT_EQ(to_decode(source, ""),
            R"({"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":)"
            R"("http://10.0.0.1:8998","remote_engine_id":"p_dp1","transfer_id":"t-7"})");
  EXPECT_EQ(to_decode({"MooncakeConnector", "", {"h", 1}, "t"}, ""), "") << "it would fetch nothing";
  EXPECT_EQ(to_decode({"Other"}, R"({"any": [1]})"), R"({"any": [1]})");
  EXPECT_THAT(to_decode({"Other"}, "[1]"), HasSubstr("cannot be right"));
}

TEST(HttpEngine, APromptIsComputedByTheClientsCallForOneToken) {
  EXPECT_EQ(
      PrefillBody(R"({"prompt":"a, b","stream":true,"stream_options":{"include_usage":true},"stop":["x"],)"
                  R"("max_tokens":7,"max_completion_tokens":8,"min_tokens":3,"n":1,"top_p":0.90,)"
                  R"("ignore_eos":false,"stop_token_ids":[5],"kv_transfer_params":null})",
                  {"NixlConnector"}),
      R"({"prompt":"a, b","top_p":0.90,"stream":false,"max_tokens":1,"ignore_eos":true,)"
      R"("kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}})");
}

// The rank that waits takes the token over, so it is drawn as the client says.
TEST(HttpEngine, APromptForSglangNamesARoom) {
  const KvSource source = {.connector = "sglang", .bootstrap = {"10.0.0.1", 9000}, .room = 7, .rank = 1};
  EXPECT_EQ(
      PrefillBody(R"({"prompt":"a","max_tokens":7,"stream":true,"bootstrap_room":3})", source),
      R"({"prompt":"a","max_tokens":7,"stream":false,"bootstrap_host":"10.0.0.1","bootstrap_port":9000,)"
      R"("bootstrap_room":7})");
  const auto& connector = KvConnectorOf("sglang");
  EXPECT_EQ(connector.InBody(connector.ToDecode(source, "")->parameters).back(),
            std::pair(std::string("disagg_prefill_dp_rank"), std::string("1")));
  for (const int status : {200, 400, 500}) {
    const auto end = EndOfPrefill(HttpClient::Answer{status, ""}, source);
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(end->hand_off, nullptr);
  }
}

// Only where it is the server's fault is the prompt computed on another one; what is wrong with a request is
// said by the engine that decodes.
TEST(HttpEngine, WhatTheAnswerToAPromptMeans) {
  using Answer = HttpClient::Answer;
  const std::string good =
      R"({"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_host":"h","remote_port":1,"remote_request_id":"r"})";
  const struct {
    absl::StatusOr<Answer> answer;
    absl::StatusCode code;
    std::string hand_off;
  } kCases[] = {
      {Answer{200, R"({"choices":[{}],"kv_transfer_params":)" + good + "}"}, absl::StatusCode::kOk, good},
      {Answer{200, R"({"kv_transfer_params":{"do_remote_prefill":true}})"}, absl::StatusCode::kUnavailable,
       ""},
      {Answer{200, R"({"kv_transfer_params":null})"}, absl::StatusCode::kOk, ""},
      {Answer{200, R"({"choices":[]})"}, absl::StatusCode::kOk, ""},
      {Answer{200, "[" + good}, absl::StatusCode::kOk, ""},
      {Answer{400, R"({"kv_transfer_params":)" + good + "}"}, absl::StatusCode::kOk, ""},
      {Answer{500, ""}, absl::StatusCode::kOk, ""},
      {absl::FailedPreconditionError("not HTTP, or too large"), absl::StatusCode::kOk, ""},
      {Answer{429, ""}, absl::StatusCode::kResourceExhausted, ""},
      {Answer{503, ""}, absl::StatusCode::kResourceExhausted, ""},
      {absl::DataLossError("incomplete"), absl::StatusCode::kUnavailable, ""},
      {absl::DeadlineExceededError("late"), absl::StatusCode::kUnavailable, ""},
      {absl::UnavailableError("broken"), absl::StatusCode::kUnavailable, ""},
      {absl::CancelledError("stopped"), absl::StatusCode::kCancelled, ""},
  };
  for (const auto& one : kCases) {
    const auto end = EndOfPrefill(one.answer, {.connector = "NixlConnector", .most_blocks = 1});
    const std::string what = one.answer.ok() ? one.answer->body : one.answer.status().ToString();
    ASSERT_EQ(end.status().code(), one.code) << what;
    EXPECT_EQ(end.ok() ? end->hand_off->parameters : "", one.hand_off) << what;
  }
}

TEST(HttpEngine, ARankThatVanishesIsUnknownAndOneMoreIsAdded) {
  testing::HttpEngine engine(3);
  const auto client = ClientOf(engine.port());
  const EngineDescription before = *Describe(*client);
  const auto after = [&](int first, int ranks) {
    engine.first = first;
    engine.ranks = ranks;
    EngineDescription description = *Describe(*client);
    FillIn(before, description);
    EXPECT_TRUE(SameServer(before, description));
    return description.ranks;
  };
  EXPECT_EQ(after(0, 2), 3);
  EXPECT_EQ(after(1, 1), 3);
  EXPECT_EQ(after(0, 4), 4);
  engine.more_metrics = "vllm:num_requests_running{engine=\"900\"} 1\n";
  EXPECT_EQ(Describe(*client).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(HttpEngine, NumbersThatCannotBeAreNotReported) {
  const double limit = std::numeric_limits<double>::infinity();
  for (const char* number : {"NaN", "-1", "-Inf", "+Inf", "1e300"}) {
    const auto ranks = ReadEngineMetrics(absl::StrCat(
        "vllm:num_requests_running ", number, "\nvllm:kv_cache_usage_perc ", number,
        "\nsglang:max_running_requests ", number, "\nvllm:cache_config_info{kv_cache_size_tokens=\"", number,
        "\"} 1\nvllm:cache_config_info{engine=\"0\",num_gpu_blocks=\"1e200\",block_size=\"1e200\"} 1\n"));
    ASSERT_EQ(ranks.size(), 1u) << number;
    for (const double value :
         {ranks.at(0).running, ranks.at(0).kv_use, ranks.at(0).slots, ranks.at(0).kv_tokens})
      EXPECT_TRUE(value == -1 && value < limit) << number;
  }
  for (const char* rank : {"-1", "1024", "x", "1e3"})
    EXPECT_TRUE(
        ReadEngineMetrics(absl::StrCat("vllm:num_requests_running{engine=\"", rank, "\"} 1")).empty());
  testing::HttpEngine engine;
  engine.more_metrics = "sglang:max_running_requests 1e12\n";
  EngineDescription description = *Describe(*ClientOf(engine.port(), 0));
  EXPECT_EQ(Complete(description).code(), absl::StatusCode::kInvalidArgument);
}

// A server that answers any request with the same bytes, and then for ever with others, or closes.
class OddServer {
 public:
  OddServer(std::string first, std::string then, bool closes = false, size_t piece = SIZE_MAX)
      : first_(std::move(first)), then_(std::move(then)), closes_(closes), piece_(piece) {
    EXPECT_EQ(listen(listener_, 8), 0);
    thread_ = std::thread([this] { Serve(); });
  }
  ~OddServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  uint16_t port() const { return static_cast<uint16_t>(testing::PortOf(listener_)); }
  int taken() const { return taken_; }

 private:
  void Serve() {
    for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0; close(fd)) {
      ++taken_;
      std::string request(4096, '\0');
      if (recv(fd, request.data(), request.size(), 0) <= 0) continue;
      bool open = true;
      for (size_t at = 0; open && at < first_.size(); at += piece_)
        open = Send(fd, first_.substr(at, piece_));
      while (open && !then_.empty()) open = Send(fd, then_);
      // Until the client closes.
      while (open && !closes_ && recv(fd, request.data(), request.size(), 0) > 0) continue;
    }
  }
  static bool Send(int fd, const std::string& bytes) {
    return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);
  }

  const std::string first_, then_;
  const bool closes_;
  const size_t piece_;
  std::atomic<int> taken_ = 0;
  const int listener_ = testing::BoundTo("127.0.0.1:0");
  std::thread thread_;
};

absl::StatusOr<HttpClient::Answer> Get(uint16_t port, absl::Duration patience = kAnswerTime) {
  HttpClient client({"127.0.0.1", port});
  return Await<absl::StatusOr<HttpClient::Answer>>(
      [&](auto done) { client.Get("/", MonotonicNow() + patience, std::move(done)); });
}

TEST(HttpClient, AnyAnswerHasABoundInTimeAndBytes) {
  const std::string ok = "HTTP/1.1 200 OK\r\n", many(size_t{64} << 10, 'x');
  const std::string chunked = ok + "Transfer-Encoding: chunked\r\n\r\n";
  constexpr bool kCloses = true;
  const struct {
    const char* name;
    std::string first, then;
    bool closes;
    const char* error;
  } kCases[] = {
      {"nothing", "", "", false, "DEADLINE_EXCEEDED"},
      {"half of it", ok + "Content-Length: 9\r\n\r\nx", "", false, "DEADLINE_EXCEEDED"},
      {"a body without an end", ok + "\r\n", many, false, "more than"},
      {"100 MB", ok + "Content-Length: 104857600\r\n\r\n", many, false, "more than"},
      {"chunks without an end", chunked, "10000\r\n" + many + "\r\n", false, "more than"},
      {"the size of a chunk without an end", chunked, std::string(many.size(), '0'), false, "not HTTP"},
      {"a chunk of 2^64 bytes", chunked + "ffffffffffffffff\r\n", many, false, "not HTTP"},
      {"headers without an end", ok, "x: y\r\nz: " + many + "\r\n", false, "more than"},
      {"a line without an end", "HTTP/1.1 200 ", many, false, "more than"},
      {"no answer", "", "", kCloses, "incomplete"},
      {"TLS", "\x15\x03\x01\x01\x02\x02\x46", "", kCloses, "not HTTP"},
      {"another protocol", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "", kCloses, "not HTTP"},
      {"a negative length", ok + "Content-Length: -1\r\n\r\n", "", kCloses, "not HTTP"},
      {"less than announced", ok + "Content-Length: 9\r\n\r\nx", "", kCloses, "incomplete"},
      {"chunks that break off", chunked + "2\r\nab\r\n", "", kCloses, "incomplete"},
  };
  for (const auto& [name, first, then, closes, error] : kCases) {
    OddServer server(first, then, closes);
    // Of those that are silent, none answers later either.
    const auto answer =
        Get(server.port(), absl::StrContains(error, "DEADLINE") ? absl::Milliseconds(50) : kAnswerTime);
    EXPECT_THAT(answer.status().ToString(), HasSubstr(error)) << name;
  }
}

TEST(HttpClient, WhatHasBegunToAnswerHasABoundOfItsOwn) {
  OddServer server("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", "");
  HttpClient client({"127.0.0.1", server.port()}, {}, absl::Milliseconds(20));
  const auto answer = Await<absl::StatusOr<HttpClient::Answer>>(
      [&](auto done) { client.Post("/", "", "", absl::InfiniteFuture(), std::move(done)); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status())) << answer.status();
}

// Each within the bound of one.
TEST(HttpClient, UnfinishedAnswersHaveABoundTogether) {
  constexpr size_t kAnswers = 8;
  const std::string part = "HTTP/1.1 200 OK\r\n\r\n" + std::string(size_t{3} << 20, 'x');
  const int listener = testing::BoundTo("127.0.0.1:0");
  ASSERT_EQ(listen(listener, kAnswers), 0);
  HttpClient client({"127.0.0.1", static_cast<uint16_t>(testing::PortOf(listener))});
  testing::Latch first{1};
  absl::Status ended;
  for (size_t i = 0; i < kAnswers; ++i) {
    client.Get("/", MonotonicNow() + kAnswerTime, [&](const auto& answer) {
      if (first.try_wait()) return;
      ended = answer.status();
      first.count_down();
    });
  }
  std::vector<int> open;
  for (size_t i = 0; i < kAnswers; ++i) {
    open.push_back(accept(listener, nullptr, nullptr));
    send(open.back(), part.data(), part.size(), MSG_NOSIGNAL);
  }
  first.wait();
  client.Stop();
  EXPECT_THAT(ended.ToString(), HasSubstr("unfinished answers have more than"));
  for (const int fd : open) close(fd);
  close(listener);
}

TEST(HttpClient, AnswersInAnyPieces) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  for (const std::string& text :
       {ok + "Content-Length: 5\r\n\r\nhello and what follows", ok + "\r\nhello",
        ok + "transfer-encoding: Chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n"}) {
    for (const size_t piece : {1u, 3u, 1000u}) {
      OddServer server(text, "", /*closes=*/true, piece);
      const auto answer = Get(server.port());
      ASSERT_TRUE(answer.ok()) << answer.status() << text;
      EXPECT_EQ(answer->body, "hello");
    }
  }
  OddServer server("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n", "");
  EXPECT_EQ(Get(server.port())->status, 302) << "redirects are not followed";
}

const std::string kLargeBody(size_t{20} << 20, ' ');

TEST(HttpClient, AServerMayAnswerBeforeItHasReadTheRequest) {
  OddServer server("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", "");
  HttpClient client({"127.0.0.1", server.port()});
  const auto answer = Await<absl::StatusOr<HttpClient::Answer>>(
      [&](auto done) { client.Post("/", "", kLargeBody, MonotonicNow() + kAnswerTime, std::move(done)); });
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 413);
}

// The server takes one connection after another: the next shows that the one before has been closed.
TEST(HttpClient, ACallThatIsCancelledClosesItsConnection) {
  OddServer server("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", "");
  HttpClient client({"127.0.0.1", server.port()});
  for (int i = 1; i <= 5; ++i) {
    const auto never = [](const auto& answer) { ADD_FAILURE() << answer.status(); };
    const uint64_t call = client.Post("/", "", kLargeBody, absl::InfiniteFuture(), never);
    while (server.taken() < i) absl::SleepFor(absl::Milliseconds(1));
    client.Cancel(call);
  }
  absl::Status ended;
  client.Get("/", absl::InfiniteFuture(), [&](const auto& answer) { ended = answer.status(); });
  client.Stop();
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
}

TEST(HttpClient, WithoutFileDescriptorsItsCallsEnd) {
  rlimit all;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &all), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = all.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto answer = Get(1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &all), 0);
  EXPECT_EQ(answer.status(), absl::ResourceExhaustedError("no file descriptor is free"));
}

// The link's thread, which serves all engines, destroys the client of one that does not answer.
TEST(HttpEngine, AClientEndsWithACallUnderWay) {
  OddServer silent("", "");
  for (int i = 0; i < 1000; ++i) {
    const auto client = ClientOf(silent.port());
    client->Describe(absl::Hours(1), [](const absl::StatusOr<EngineDescription>&) {});
    client->GetLoads(absl::Hours(1), [](const absl::StatusOr<std::vector<EngineRankLoad>>&) {});
    if (i % 2 == 0) std::this_thread::yield();
  }
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
