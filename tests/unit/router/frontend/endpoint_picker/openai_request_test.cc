#include "router/frontend/endpoint_picker/openai_request.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace bfio::router::picker {
namespace {

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
  for (const char* body : {"", "[]", "{", "nothing", R"({"model":"a","model":"b"})"})
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
  for (const std::string& body :
       {own, "\xef\xbb\xbf\n" + own, deep, std::string(R"({"kv_\u0074ransfer_params":1})")})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckNoHandOff(body))) << body;
  for (const char* body : {"", "--form", "[1]", "{}", R"({"x":{"kv_transfer_params":1}})"})
    EXPECT_TRUE(CheckNoHandOff(body).ok()) << body;
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
