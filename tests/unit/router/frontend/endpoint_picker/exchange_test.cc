#include "router/frontend/endpoint_picker/exchange.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/frontend/endpoint_picker/picker_service.h"
#include "router/requests/retry.h"
#include "tests/unit/router/frontend/endpoint_picker/ext_proc_messages.h"

namespace bfio::router::picker {
namespace {

namespace pb = bfio::testing::ext_proc;
using bfio::testing::RequestBody;
using bfio::testing::RequestHeaders;
using bfio::testing::ResponseBody;
using bfio::testing::ResponseHeaders;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Action = Exchange::Action;
using Phase = Exchange::Phase;

const testing::HeaderList kPost = {{":path", "/v1/completions"}, {"X-Request-Id", "r"}};

// The answers in short: what they answer, the endpoint, and the piece of the body.
std::vector<std::string> Answers(Exchange& exchange) {
  std::vector<std::string> texts;
  for (const Out& answer : exchange.TakeAnswers()) {
    std::string text;
    const auto common = [&](const char* name, const pb::CommonResponse& response) {
      text = name;
      for (const auto& option : response.header_mutation().set_headers()) {
        text += " " + option.header().key() + "=" + option.header().raw_value();
        EXPECT_EQ(option.append_action(), pb::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
      }
      const auto& piece = response.body_mutation().streamed_response();
      if (response.body_mutation().has_streamed_response())
        text += " [" + piece.body().substr(0, 20) + (piece.end_of_stream() ? "]." : "]");
    };
    if (answer.has_request_headers()) common("headers", answer.request_headers().response());
    if (answer.has_request_body()) common("body", answer.request_body().response());
    if (answer.has_response_headers()) common("response", answer.response_headers().response());
    if (answer.has_response_body()) common("response body", answer.response_body().response());
    if (answer.has_request_trailers()) text = "trailers";
    if (answer.has_response_trailers()) text = "response trailers";
    if (answer.has_immediate_response()) {
      text = "immediate " + std::to_string(answer.immediate_response().status().code());
      for (const auto& option : answer.immediate_response().headers().set_headers())
        text += " " + option.header().key() + "=" + option.header().raw_value();
    }
    if (answer.has_dynamic_metadata()) {
      text += " metadata=" + answer.dynamic_metadata()
                                 .fields()
                                 .at("envoy.lb")
                                 .struct_value()
                                 .fields()
                                 .at("x-gateway-destination-endpoint")
                                 .string_value();
    }
    texts.push_back(text);
  }
  return texts;
}

TEST(Exchange, ABufferedBodyIsHeldAfterItsHeadersAreAnswered) {
  const std::vector<std::string> headers = {"x-request-id"};
  Exchange exchange(100, headers);
  EXPECT_EQ(exchange.OnMessage(RequestHeaders(pb::BUFFERED, pb::NONE, kPost)), Action::kNone);
  EXPECT_THAT(Answers(exchange), ElementsAre("headers"));
  EXPECT_EQ(exchange.header("x-request-id"), "r");
  EXPECT_EQ(exchange.OnMessage(RequestBody("all of it", true)), Action::kPlace);
  EXPECT_EQ(exchange.body(), "all of it");
  EXPECT_EQ(exchange.phase(), Phase::kHeld);
  EXPECT_THAT(Answers(exchange), IsEmpty()) << "held";
  exchange.DropBody();
  EXPECT_EQ(exchange.body(), "") << "Envoy has it";
  exchange.OnPlaced({"10.0.0.1:8000", 3});
  EXPECT_THAT(Answers(exchange),
              ElementsAre("body x-gateway-destination-endpoint=10.0.0.1:8000 x-data-parallel-rank=3 "
                          "metadata=10.0.0.1:8000"));
  EXPECT_EQ(exchange.OnMessage(ResponseHeaders(200)), Action::kNone);
  EXPECT_THAT(Answers(exchange), ElementsAre("response"));
  EXPECT_EQ(exchange.served(), "10.0.0.1:8000");
  EXPECT_EQ(exchange.failure(), "");
  EXPECT_TRUE(exchange.response_complete()) << "its end is not shown";
}

TEST(Exchange, AStreamedBodyComesBackInPiecesOnceThereIsAPlace) {
  Exchange exchange(1 << 20);
  exchange.OnMessage(RequestHeaders(pb::FULL_DUPLEX_STREAMED, pb::FULL_DUPLEX_STREAMED, kPost));
  EXPECT_THAT(Answers(exchange), IsEmpty()) << "nothing is answered before there is a place";
  EXPECT_EQ(exchange.OnMessage(RequestBody(std::string(70'000, 'a'), false)), Action::kNone);
  EXPECT_EQ(exchange.OnMessage(RequestBody("", true)), Action::kPlace);
  exchange.DropBody();
  exchange.OnPlaced({"10.0.0.1:8000", std::nullopt});
  const std::string a(20, 'a');
  EXPECT_THAT(Answers(exchange),
              ElementsAre("headers x-gateway-destination-endpoint=10.0.0.1:8000 metadata=10.0.0.1:8000",
                          "body [" + a + "]", "body [" + a + "]."));
  exchange.OnMessage(ResponseHeaders(200));
  exchange.OnMessage(ResponseBody("data: 1", false));
  EXPECT_FALSE(exchange.response_complete());
  exchange.OnMessage(ResponseBody("", true));
  EXPECT_THAT(Answers(exchange), ElementsAre("response", "response body [data: 1]", "response body []."));
  EXPECT_TRUE(exchange.response_complete());
}

// The rank that decodes is told where the KV of the prompt is.
TEST(Exchange, AHandOffIsAddedToTheBody) {
  const std::vector<std::pair<std::string, std::string>> members = {{"kv_transfer_params", R"({"id":7})"}};
  const std::string expected = R"({"prompt":"p","max_tokens":9,"kv_transfer_params":{"id":7}})";
  Exchange buffered(1000);
  buffered.OnMessage(RequestHeaders(pb::BUFFERED, pb::NONE, kPost));
  buffered.OnMessage(RequestBody(R"({"prompt":"p","max_tokens":9})", true));
  buffered.TakeAnswers();
  buffered.OnPlaced({"e:1", std::nullopt, members});
  const pb::CommonResponse response = buffered.TakeAnswers().front().request_body().response();
  EXPECT_EQ(response.body_mutation().body(), expected);
  EXPECT_EQ(response.header_mutation().set_headers(1).header().key(), "content-length");
  EXPECT_EQ(response.header_mutation().set_headers(1).header().raw_value(), std::to_string(expected.size()));
  Exchange streamed(1000);
  streamed.OnMessage(RequestHeaders(pb::FULL_DUPLEX_STREAMED, pb::NONE, kPost));
  streamed.OnMessage(RequestBody(R"({"prompt":"p",)", false));
  streamed.OnMessage(RequestBody(R"("max_tokens":9})", true));
  streamed.OnPlaced({"e:1", std::nullopt, members});
  EXPECT_EQ(
      streamed.TakeAnswers().back().request_body().response().body_mutation().streamed_response().body(),
      expected);
}

TEST(Exchange, ABodyMayEndWithTrailers) {
  Exchange exchange(100);
  exchange.OnMessage(RequestHeaders(pb::FULL_DUPLEX_STREAMED, pb::NONE, kPost));
  exchange.OnMessage(RequestBody("b", false));
  In trailers;
  trailers.mutable_request_trailers();
  EXPECT_EQ(exchange.OnMessage(std::move(trailers)), Action::kPlace);
  exchange.OnPlaced({"e:1", std::nullopt});
  EXPECT_THAT(Answers(exchange),
              ElementsAre("headers x-gateway-destination-endpoint=e:1 metadata=e:1", "body [b]", "trailers"));
  // Envoy waits for an answer to what follows the choice of the place.
  Exchange streamed(100);
  streamed.OnMessage(RequestHeaders(pb::STREAMED, pb::NONE, kPost));
  streamed.OnPlaced({"e:1", std::nullopt});
  streamed.TakeAnswers();
  EXPECT_EQ(streamed.OnMessage(RequestBody("b", false)), Action::kNone);
  trailers.mutable_request_trailers();
  EXPECT_EQ(streamed.OnMessage(std::move(trailers)), Action::kNone);
  EXPECT_THAT(Answers(streamed), ElementsAre("body", "trailers"));
}

TEST(Exchange, WhatIsPlacedWithoutABody) {
  for (const auto& [mode, ends] :
       std::vector<std::pair<pb::BodySendMode, bool>>{{pb::BUFFERED, true},
                                                      {pb::FULL_DUPLEX_STREAMED, true},
                                                      {pb::NONE, false},
                                                      {pb::STREAMED, false}}) {
    Exchange exchange(100);
    EXPECT_EQ(exchange.OnMessage(RequestHeaders(mode, pb::NONE, kPost, ends)), Action::kPlace);
    EXPECT_THAT(Answers(exchange), IsEmpty());
    exchange.OnPlaced({"e:1", std::nullopt});
    EXPECT_THAT(Answers(exchange), ElementsAre("headers x-gateway-destination-endpoint=e:1 metadata=e:1"));
  }
}

TEST(Exchange, TheEndpointsThatEnvoyPermits) {
  const auto subset_of = [](const std::string& text, const std::vector<std::string>& list) {
    In headers = RequestHeaders(pb::NONE, pb::NONE, kPost);
    auto& value = (*(*headers.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb.subset_hint"]
                        .mutable_fields())["x-gateway-destination-endpoint-subset"];
    value.set_string_value(text);
    for (const std::string& one : list) value.mutable_list_value()->add_values()->set_string_value(one);
    Exchange exchange(100);
    exchange.OnMessage(std::move(headers));
    return *exchange.subset();
  };
  EXPECT_THAT(subset_of(" 10.0.0.1:8000 ,10.0.0.2,", {}), UnorderedElementsAre("10.0.0.1:8000", "10.0.0.2"));
  EXPECT_THAT(subset_of("", {"10.0.0.1:8000", "10.0.0.2"}),
              UnorderedElementsAre("10.0.0.1:8000", "10.0.0.2"));
  EXPECT_THAT(subset_of("", {}), IsEmpty()) << "none is permitted";
  EXPECT_THAT(subset_of("10.0.0.1," + std::string(1 << 20, '1'), {}), ElementsAre("10.0.0.1"));
  Exchange any(100);
  any.OnMessage(RequestHeaders(pb::NONE, pb::NONE, kPost));
  EXPECT_EQ(any.subset(), std::nullopt);
}

// A client's own headers cannot push out what the gateway adds behind them.
TEST(Exchange, OnlyHeadersThatAreReadAreKept) {
  bfio::testing::HeaderList all;
  for (int i = 0; i < 2000; ++i) all.emplace_back("x-" + std::to_string(i), "v");
  all.insert(all.end(), {{"x-Tenant", std::string(1 << 20, 'a')}, {"x-tenant", "b"}});
  const std::vector<std::string> headers = {"X-tenant"};
  Exchange exchange(100, headers);
  exchange.OnMessage(RequestHeaders(pb::BUFFERED, pb::NONE, all));
  EXPECT_EQ(exchange.header("X-tenant"), std::string(4096, 'a')) << "too long for a tenant, and not absent";
  EXPECT_EQ(exchange.header("x-1"), "");
}

TEST(Exchange, AnObserverIsAnsweredNothing) {
  Exchange exchange(100);
  In headers = RequestHeaders(pb::NONE, pb::STREAMED, kPost, true);
  headers.set_observability_mode(true);
  EXPECT_EQ(exchange.OnMessage(std::move(headers)), Action::kNone);
  EXPECT_EQ(exchange.OnMessage(ResponseHeaders(200)), Action::kNone);
  EXPECT_EQ(exchange.OnMessage(ResponseBody("x", true)), Action::kNone);
  EXPECT_THAT(Answers(exchange), IsEmpty());
  EXPECT_TRUE(exchange.response_complete());
}

TEST(Exchange, RefusalsAreHttpAnswersWithARetryTime) {
  const absl::Status full =
      WithRetry(absl::ResourceExhaustedError("full \"now\"\n"), absl::Milliseconds(1500));
  for (const auto& [status, answer] : std::vector<std::pair<absl::Status, std::string>>{
           {full, "immediate 429 content-type=application/json retry-after=2"},
           {absl::UnavailableError("x"), "immediate 503 content-type=application/json retry-after=1"},
           {absl::InvalidArgumentError("x"), "immediate 400 content-type=application/json"},
           {absl::OutOfRangeError("x"), "immediate 413 content-type=application/json"},
           {absl::DeadlineExceededError("x"), "immediate 504 content-type=application/json"},
           {absl::InternalError("x"), "immediate 500 content-type=application/json"}}) {
    Exchange exchange(100);
    exchange.OnMessage(RequestHeaders(pb::BUFFERED, pb::NONE, kPost, true));
    exchange.OnRefused(status);
    EXPECT_THAT(Answers(exchange), ElementsAre(answer));
    exchange.OnRefused(status);
    EXPECT_THAT(Answers(exchange), IsEmpty()) << "once";
  }
  Exchange exchange(100);
  exchange.OnMessage(RequestHeaders(pb::BUFFERED, pb::NONE, kPost, true));
  exchange.OnRefused(full);
  EXPECT_EQ(exchange.TakeAnswers().front().immediate_response().body(),
            R"({"error":{"message":"full \"now\" ","type":"resource_exhausted","code":429}})");
  exchange.OnMessage(ResponseHeaders(429));
  EXPECT_THAT(Answers(exchange), IsEmpty()) << "its own answer passes by";
}

TEST(Exchange, AnAnswerThatHasBegunIsNotRefused) {
  Exchange exchange(100);
  exchange.OnMessage(RequestHeaders(pb::NONE, pb::NONE, kPost, true));
  exchange.OnPlaced({"e:1", std::nullopt});
  exchange.TakeAnswers();
  exchange.OnRefused(absl::UnavailableError("late"));
  EXPECT_THAT(Answers(exchange), IsEmpty());
  exchange.OnMessage(ResponseHeaders(503, "remote_connection_failure"));
  EXPECT_EQ(exchange.status(), 503);
  EXPECT_EQ(exchange.failure(), "remote_connection_failure");
}

TEST(Exchange, TooMuchAndOutOfOrder) {
  Exchange large(5);
  large.OnMessage(RequestHeaders(pb::FULL_DUPLEX_STREAMED, pb::NONE, kPost));
  EXPECT_EQ(large.OnMessage(RequestBody("123", false)), Action::kNone);
  EXPECT_EQ(large.OnMessage(RequestBody("456", false)), Action::kTooLarge);
  Exchange order(5);
  EXPECT_EQ(order.OnMessage(RequestBody("1", true)), Action::kBroken) << "before the headers";
  EXPECT_EQ(order.OnMessage({}), Action::kBroken);
  EXPECT_EQ(order.OnMessage(RequestHeaders(pb::BUFFERED, pb::NONE, kPost)), Action::kNone);
  EXPECT_EQ(order.OnMessage(RequestHeaders(pb::BUFFERED, pb::NONE, kPost)), Action::kBroken) << "twice";
}

// --- openai request ---

OpenAiRequest Read(const std::string& body) {
  auto request = ReadOpenAiRequest(body);
  EXPECT_TRUE(request.ok()) << request.status() << "\n" << body;
  return request.ok() ? *std::move(request) : OpenAiRequest();
}

TEST(OpenAiRequest, LengthsOfEveryApi) {
  const OpenAiRequest chat = Read(
      R"({"model":"m","messages":[{"role":"user","content":"12345"}],"max_completion_tokens":7,"n":3,"x":[{}]})");
  EXPECT_EQ(chat.model, "m");
  EXPECT_EQ(chat.max_tokens, 7u);
  EXPECT_EQ(chat.outputs, 3u);
  // "12345\nuser\n" by four.
  EXPECT_EQ(chat.prompt_tokens, 3u);
  const OpenAiRequest text = Read(R"({"prompt":"1234567","max_tokens":9})");
  EXPECT_EQ(text.prompt_tokens, 2u);
  EXPECT_EQ(text.max_tokens, 9u);
  EXPECT_EQ(Read(R"({"prompt":[5,6,7]})").prompt_tokens, 3u) << "token ids";
  EXPECT_EQ(Read(R"({"prompt":[5,6,7]})").max_tokens, std::nullopt);
  EXPECT_EQ(Read(R"({"input":"1234567","instructions":"1234567","max_output_tokens":2})").prompt_tokens, 4u);
  EXPECT_EQ(Read("{}").prompt_tokens, 1u);
}

TEST(OpenAiRequest, WhatHasAnotherTypeIsLeftToTheEngine) {
  const OpenAiRequest odd =
      Read(R"({"model":5,"messages":{"a":null},"max_tokens":-1,"n":"many","prompt":[-1,"text"]})");
  EXPECT_EQ(odd.model, "");
  EXPECT_EQ(odd.max_tokens, std::nullopt);
  EXPECT_EQ(odd.outputs, 1u);
  EXPECT_EQ(Read(R"({"n":4000000000,"max_tokens":99999999999})").outputs, 1024u);
  for (const char* body : {"", "[]", "{", "nothing", R"({"model":"a","model":"b"})",
                           R"({"messages":["a"],"messages":["b"]})", R"({"prompt":[1],"prompt":[1]})"})
    EXPECT_EQ(ReadOpenAiRequest(body).status().code(), absl::StatusCode::kInvalidArgument) << body;
  EXPECT_EQ(ReadOpenAiRequest(std::string(100'000, '[')).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(OpenAiRequest, ConversationsThatBeginAlikeShareTheirFirstBlocks) {
  const std::string first = absl::StrCat(R"({"role":"system","content":")", std::string(600, 's'), R"("})");
  const auto with = [&](const std::string& next) {
    return Read(absl::StrCat(R"({"messages":[)", first, R"(,{"role":"user","content":")", next, R"("}]})"))
        .prefix;
  };
  const core::PrefixBlocks a = with("one"), b = with(std::string(600, 't'));
  ASSERT_NE(a, nullptr);
  ASSERT_GE(a->size(), 2u);
  ASSERT_GT(b->size(), a->size());
  EXPECT_TRUE(std::equal(a->begin(), a->end(), b->begin()));
  EXPECT_NE(with(std::string(600, 'u'))->back(), b->back());
  EXPECT_EQ(Read(R"({"prompt":"short"})").prefix, nullptr);
}

// A tree of such prompts would take up to 200 MB.
TEST(OpenAiRequest, APromptMayHaveAnyNumberOfValues) {
  const auto many = [](const std::string& before, const std::string& one, const std::string& after) {
    std::string body = before + one;
    for (int i = 1; i < 1'500'000; ++i) body += "," + one;
    return body + after;
  };
  EXPECT_EQ(Read(many(R"({"prompt":[)", "7", "]}")).prompt_tokens, 1'500'000u);
  EXPECT_EQ(Read(many(R"({"messages":[)", R"({"a":1})", "]}")).prompt_tokens, 1u);
  EXPECT_EQ(Read(many(R"({"messages":[)", R"("abc")", "]}")).prompt_tokens, 1'500'000u);
}

TEST(OpenAiRequest, APromptMayFillTheBody) {
  EXPECT_EQ(Read(absl::StrCat(R"({"prompt":")", std::string(12 << 20, 'p'), R"("})")).prompt_tokens,
            (3 << 20) + 1);
}

// The answer of the engine that decodes must be that of one that computes the prompt itself.
TEST(OpenAiRequest, WhichPromptsAnotherEngineMayCompute) {
  for (const auto& [body, may] : std::vector<std::pair<std::string, bool>>{
           {R"("messages":[{}],"n":1,"echo":false,"prompt_logprobs":null,"kv_transfer_params":null)", true},
           {R"("prompt":"p")", true},
           {R"("prompt":[5,6])", true},
           {R"("prompt":["p","q"])", false},
           {R"("prompt":[[5],[6]])", false},
           {R"("input":"p")", false},
           {R"("prompt":"p","n":2)", false},
           {R"("prompt":"p","echo":true)", false},
           {R"("prompt":"p","use_beam_search":true)", false},
           {R"("prompt":"p","prompt_logprobs":0)", false},
           {R"("prompt":"p","truncate_prompt_tokens":-1)", false}})
    EXPECT_EQ(Read("{" + body + "}").one_prompt, may) << body;
}

// A client's own might name no KV, which ends vLLM's engine, or KV that has been fetched.
TEST(OpenAiRequest, ClientsHandNothingOver) {
  const std::string own = R"({"prompt":"p","kv_transfer_params":{"do_remote_prefill":true}})";
  EXPECT_EQ(ReadOpenAiRequest(own).status().message(),
            "kv_transfer_params of a client: only the router hands prompts over");
  const std::string deep =
      R"({"x":)" + std::string(40, '[') + std::string(40, ']') + R"(,"kv_transfer_params":{}})";
  // Python's json.loads reads these, too.
  const auto widened = [&own](size_t zeros_before, size_t zeros_after) {
    std::string wide;
    for (const char c : own) wide.append(zeros_before, '\0').append(1, c).append(zeros_after, '\0');
    return wide;
  };
  for (const std::string& body :
       {own, "\xef\xbb\xbf\n" + own, deep, std::string(R"({"kv_\u0074ransfer_params":1})"), widened(1, 0),
        widened(0, 1), widened(3, 0), widened(0, 3), "\xfe\xff" + widened(1, 0), "\xff\xfe" + widened(0, 1)})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckNoHandOff(body))) << body;
  for (const char* body : {"", "--form", "[1]", "{}", R"({"x":{"kv_transfer_params":null}})"})
    EXPECT_TRUE(CheckNoHandOff(body).ok()) << body;
  // vLLM takes one out of these, too.
  for (const char* body :
       {R"({"vllm_xargs":{"kv_transfer_params":"x"}})",
        R"({"sampling_params":{"extra_args":{"kv_transfer_params":null,"kv_transfer_params":{}}}})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckNoHandOff(body))) << body;
    EXPECT_TRUE(absl::IsInvalidArgument(ReadOpenAiRequest(body).status())) << body;
  }
  const std::string text = R"({"tools":[{"parameters":{"kv_transfer_params":{"type":"string"}}}]})";
  EXPECT_TRUE(ReadOpenAiRequest(text).ok()) << "a tool's argument";
}

TEST(OpenAiRequest, Paths) {
  for (const char* path :
       {"/v1/chat/completions", "/v1/completions?x=1", "/v1/responses", "/a/v1/completions"})
    EXPECT_TRUE(Generates(path)) << path;
  for (const char* path : {"/v1/models", "/health", "", "/v1/completions/x", "/v1/models?a=/completions"})
    EXPECT_FALSE(Generates(path)) << path;
}

}  // namespace
}  // namespace bfio::router::picker
