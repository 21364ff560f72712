// Bytes as tokens, and what of a JSON body becomes a request.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/testing/mutate.h"
#include "tools/openai/byte_text.h"
#include "tools/openai/completion_request.h"
#include "tools/openai/reply.h"

namespace bfio::openai {
namespace {

std::vector<uint32_t> Bytes(absl::string_view text, uint32_t offset) {
  std::vector<uint32_t> ids;
  AppendBytes(text, offset, ids);
  return ids;
}

TEST(TextDecoder, GivesTextBackHoweverItIsCut) {
  const std::string text = "a\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";  // 1, 2, 3 and 4 bytes
  const std::vector<uint32_t> ids = Bytes(text, 1000);
  EXPECT_EQ(ids.front(), 1000u + 'a');
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    TextDecoder decoder(1000);
    const absl::Span<const uint32_t> all(ids);
    std::string out = decoder.Decode(all.subspan(0, cut));
    out += decoder.Decode(all.subspan(cut));
    EXPECT_EQ(out + decoder.Finish(), text) << cut;
  }
}

TEST(TextDecoder, ReplacesWhatIsNoText) {
  const auto decode = [](absl::string_view bytes) {
    TextDecoder decoder(0);
    std::string out = decoder.Decode(Bytes(bytes, 0));
    return out + decoder.Finish();
  };
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(decode("\xff"), bad);
  EXPECT_EQ(decode("\xc3"), bad) << "cut off";
  EXPECT_EQ(decode("\xc3x"), bad + "x");
  EXPECT_EQ(decode("\xc0\xaf"), bad + bad) << "overlong";
  EXPECT_EQ(decode("\xed\xa0\x80"), bad + bad + bad) << "a surrogate";
  EXPECT_EQ(decode("\xf4\x90\x80\x80"), bad + bad + bad + bad) << "beyond Unicode";
  EXPECT_EQ(decode("\xe2\x82\xe2\x82\xac"), bad + bad + "\xe2\x82\xac");
}

TEST(TextDecoder, ShowsIdsThatAreNoBytes) {
  TextDecoder decoder(3);
  EXPECT_EQ(decoder.Decode({3 + 'a', 2, 259, 4294967295, 3 + 0xc3}), "a<|2|><|259|><|4294967295|>");
  EXPECT_EQ(decoder.Decode({7000}), "\xef\xbf\xbd<|7000|>") << "the begun character is given up";
}

TEST(ParseCompletionRequest, TakesEveryFieldOver) {
  const auto parsed = ParseCompletionRequest(Api::kCompletions, R"({
      "model": "m", "prompt": "hi", "max_tokens": 9, "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.25,
      "top_k": 4, "seed": 18446744073709551615, "stop": ["!", "?"], "stop_token_ids": [70000], "ignore_eos": true,
      "stream": true, "stream_options": {"include_usage": true}, "return_token_ids": true, "priority": -3,
      "predicted_output_tokens": 5, "parent_id": "agent", "stage": 2, "remaining_tokens": 0})",
                                             {.model = "m", .byte_offset = 256});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  v1::GenerateRequest wanted;
  wanted.mutable_token_ids()->add_ids(256 + 'h');
  wanted.mutable_token_ids()->add_ids(256 + 'i');
  wanted.set_max_new_tokens(7);
  for (const uint32_t id : {256u + '!', 256u + '?', 70000u}) wanted.add_stop_token_ids(id);
  wanted.set_ignore_eos(true);
  wanted.mutable_sampling()->set_temperature(0.5);
  wanted.mutable_sampling()->set_top_p(0.25);
  wanted.mutable_sampling()->set_top_k(4);
  wanted.mutable_sampling()->set_seed(18446744073709551615u);
  wanted.set_priority(3);
  wanted.set_predicted_output_tokens(5);
  wanted.set_parent_id("agent");
  wanted.set_stage(2);
  wanted.set_remaining_tokens(0);
  EXPECT_EQ(parsed->generate.DebugString(), wanted.DebugString());
  EXPECT_TRUE(parsed->stream && parsed->include_usage && parsed->return_token_ids);
}

TEST(ParseCompletionRequest, SurvivesBytesThatAreNoRequest) {
  const std::string good =
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"prompt":[[1,2]],)"
      R"("stop":["a"],"stream_options":{"include_usage":true},"max_tokens":3,"seed":1.5})";
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    const std::string body = bfio::testing::Mutate(good, rng);
    for (const Api api : {Api::kChat, Api::kCompletions}) {
      const auto parsed = ParseCompletionRequest(api, body, {});
      if (!parsed.ok()) {
        EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << parsed.status();
      }
    }
  }
}

TEST(ParseCompletionRequest, SurvivesValuesOfAMillionLevels) {
  constexpr size_t kLevels = 900'000;
  const std::string deep = absl::StrCat(std::string(kLevels, '['), std::string(kLevels, ']'));
  const std::string good = R"({"messages":[{"role":"user","content":"x"}],"prompt":[1])";
  const auto parse = [](Api api, const std::string& body) {
    return ParseCompletionRequest(api, body, {}).status().code();
  };
  for (const char* field :
       {"stop", "stop_token_ids", "prompt", "model", "tools", "response_format", "top_k", "seed", "stream"}) {
    const std::string head = field == std::string("prompt") ? "{\"x\":1" : R"({"prompt":[1])";
    EXPECT_EQ(parse(Api::kCompletions, absl::StrCat(head, ",\"", field, "\":", deep, "}")),
              absl::StatusCode::kInvalidArgument)
        << field;
  }
  constexpr std::pair<const char*, const char*> kAround[] = {
      {R"({"messages":)", "}"},
      {R"({"messages":[{"role":)", "}]}"},
      {R"({"messages":[{"role":"user","content":)", "}]}"},
      {R"({"messages":[{"role":"user","content":[{"type":)", R"(,"text":"x"}]}]})"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":)", "}]}]}"}};
  for (const auto& [before, after] : kAround) {
    EXPECT_EQ(parse(Api::kChat, absl::StrCat(before, deep, after)), absl::StatusCode::kInvalidArgument)
        << before;
  }
  EXPECT_EQ(parse(Api::kChat, good + "}"), absl::StatusCode::kOk);
}

TEST(ToError, NamesTheFieldAndSaysWhenToComeAgain) {
  const ErrorReply wrong = ToError(absl::InvalidArgumentError("sampling.top_p is 7; must be above 0"));
  EXPECT_EQ(wrong.http_status, 400);
  EXPECT_NE(wrong.body.find(R"("param":"top_p")"), std::string::npos) << wrong.body;
  EXPECT_FALSE(wrong.retry_after_s.has_value());
  EXPECT_EQ(ToError(absl::ResourceExhaustedError("full")).retry_after_s, 1);
  const ErrorReply large =
      ToError(absl::ResourceExhaustedError("Received message larger than max (1500000 vs. 1050000)"));
  EXPECT_EQ(large.http_status, 413);
  EXPECT_EQ(large.retry_after_s, std::nullopt) << "another try would be as large";
  EXPECT_EQ(ToError(absl::UnavailableError("\xff not UTF-8")).http_status, 503);
  EXPECT_EQ(ToError(absl::DeadlineExceededError("late")).http_status, 504);
  EXPECT_EQ(ToError(absl::DataLossError("lost")).http_status, 500);
}

}  // namespace
}  // namespace bfio::openai
