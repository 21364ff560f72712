// The conversion of each field of a gateway's request to SGLang. Fields that vLLM has, too, are checked by
// the same code (router/frontend/gateway/request_fields.h); vllm/generate_request_test.cc tests its
// refusals.
#include "router/frontend/sglang/generate_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace bfio::router::sglang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The request that SMG 1.13 (SGLang's model gateway) sends if only max_tokens is set.
pb::GenerateRequest Plain() {
  pb::GenerateRequest request;
  request.set_request_id("chatcmpl-1");
  request.mutable_tokenized()->set_original_text("abc");
  for (const uint32_t id : {5u, 6u, 7u}) request.mutable_tokenized()->add_input_ids(id);
  pb::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_temperature(1);
  sampling.set_top_p(1);
  sampling.set_top_k(-1);
  sampling.set_repetition_penalty(1);
  sampling.set_max_new_tokens(9);
  sampling.set_skip_special_tokens(true);
  sampling.set_spaces_between_special_tokens(true);
  sampling.set_n(1);
  request.set_logprob_start_len(-1);
  return request;
}

gateway::RequestContext Context() {
  gateway::RequestContext context;
  context.max_sequence_tokens = 1000;
  return context;
}

absl::StatusOr<gateway::ConvertedRequest> ConvertPlain(const pb::GenerateRequest& request) {
  return Convert(request, "acme", Context());
}

TEST(SglangRequest, EveryFieldThatCountsIsTaken) {
  pb::GenerateRequest request = Plain();
  pb::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_temperature(0.5);
  sampling.set_top_p(0.25);
  sampling.set_top_k(4);
  sampling.set_ignore_eos(true);
  sampling.add_stop_token_ids(11);
  sampling.add_stop("end");
  sampling.set_n(3);
  request.set_stream(true);
  request.set_data_parallel_rank(2);
  const auto converted = ConvertPlain(request);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->outputs, 3u);
  EXPECT_TRUE(converted->stream);
  EXPECT_THAT(converted->stops, ElementsAre("end"));
  EXPECT_FALSE(converted->special_text);
  const ClientRequest& to = converted->request;
  EXPECT_EQ(to.request_id, "chatcmpl-1");
  EXPECT_EQ(to.tenant, "acme");
  EXPECT_THAT(to.prompt, ElementsAre(5, 6, 7));
  EXPECT_EQ(to.prompt_tokens, 3u);
  EXPECT_EQ(to.max_new_tokens, 9u);
  EXPECT_THAT(to.stop_token_ids, ElementsAre(11));
  EXPECT_TRUE(to.ignore_eos);
  EXPECT_EQ(to.sampling.temperature, 0.5f);
  EXPECT_EQ(to.sampling.top_p, 0.25f);
  EXPECT_EQ(to.sampling.top_k, 4u);
  EXPECT_FALSE(to.sampling.seed.has_value()) << "the protocol has none";
  EXPECT_EQ(to.rank, 2u);
}

TEST(SglangRequest, UnsetFieldsHaveSglangsDefaults) {
  pb::GenerateRequest request = Plain();
  request.clear_sampling_params();
  const auto converted = ConvertPlain(request);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->outputs, 1u);
  EXPECT_FALSE(converted->stream);
  EXPECT_TRUE(converted->special_text);
  const ClientRequest& to = converted->request;
  EXPECT_EQ(to.sampling.temperature, 0.0f) << "greedy, and not 1 as in vLLM";
  EXPECT_FALSE(to.sampling.top_p.has_value());
  EXPECT_FALSE(to.sampling.top_k.has_value());
  EXPECT_FALSE(to.rank.has_value());
  EXPECT_EQ(to.max_new_tokens, 997u) << "all that fits behind the prompt";
  request = Plain();
  EXPECT_FALSE(ConvertPlain(request)->request.sampling.top_k.has_value()) << "-1 is all tokens";
}

TEST(SglangRequest, FieldsWithoutEffectAreAccepted) {
  pb::GenerateRequest request = Plain();
  request.mutable_timestamp()->set_seconds(5);
  request.set_log_metrics(true);
  request.set_require_reasoning(true);
  request.set_logprob_start_len(3);
  request.mutable_sampling_params()->set_no_stop_trim(true);
  request.mutable_sampling_params()->set_stream_interval(1);
  EXPECT_TRUE(ConvertPlain(request).ok());
}

TEST(SglangRequest, UnsupportedFieldsAreRefusedByName) {
  using Set = std::function<void(pb::GenerateRequest&, pb::SamplingParams&)>;
  const std::vector<std::pair<std::string, Set>> fields = {
      {"mm_inputs", [](auto& r, auto&) { r.mutable_mm_inputs(); }},
      {"input_embeds", [](auto& r, auto&) { r.add_input_embeds(1); }},
      {"return_hidden_states", [](auto& r, auto&) { r.set_return_hidden_states(true); }},
      {"disaggregated_params", [](auto& r, auto&) { r.mutable_disaggregated_params(); }},
      {"custom_logit_processor", [](auto& r, auto&) { r.set_custom_logit_processor("x"); }},
      {"lora_id", [](auto& r, auto&) { r.set_lora_id("x"); }},
      {"top_logprobs_num without return_logprob", [](auto& r, auto&) { r.set_top_logprobs_num(1); }},
      {"token_ids_logprob", [](auto& r, auto&) { r.add_token_ids_logprob(1); }},
      {"sampling_params.min_p", [](auto&, auto& s) { s.set_min_p(0.1f); }},
      {"sampling_params.min_p", [](auto&, auto& s) { s.set_min_p(NAN); }},
      {"sampling_params.frequency_penalty", [](auto&, auto& s) { s.set_frequency_penalty(-1); }},
      {"sampling_params.presence_penalty", [](auto&, auto& s) { s.set_presence_penalty(1); }},
      {"sampling_params.repetition_penalty", [](auto&, auto& s) { s.set_repetition_penalty(1.5f); }},
      {"sampling_params.min_new_tokens", [](auto&, auto& s) { s.set_min_new_tokens(1); }},
      {"sampling_params.stream_interval", [](auto&, auto& s) { s.set_stream_interval(8); }},
      {"sampling_params.logit_bias", [](auto&, auto& s) { (*s.mutable_logit_bias())["7"] = 1; }},
      {"sampling_params.custom_params", [](auto&, auto& s) { s.mutable_custom_params(); }},
      {"sampling_params.regex", [](auto&, auto& s) { s.set_regex(""); }},
      {"sampling_params.json_schema", [](auto&, auto& s) { s.set_json_schema("{}"); }},
      {"sampling_params.ebnf_grammar", [](auto&, auto& s) { s.set_ebnf_grammar("x"); }},
      {"sampling_params.structural_tag", [](auto&, auto& s) { s.set_structural_tag("x"); }},
  };
  for (const auto& [name, set] : fields) {
    pb::GenerateRequest request = Plain();
    set(request, *request.mutable_sampling_params());
    const absl::Status status = ConvertPlain(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    EXPECT_EQ(status.message(), name + " is not supported by this engine");
  }
}

TEST(SglangRequest, WhatIsOutOfRangeIsRefusedWithItsLimit) {
  using Set = std::function<void(pb::GenerateRequest&)>;
  const std::vector<std::pair<std::string, Set>> values = {
      {"sampling_params.top_k is -2", [](auto& r) { r.mutable_sampling_params()->set_top_k(-2); }},
      {"top_logprobs_num is -1",
       [](auto& r) {
         r.set_return_logprob(true);
         r.set_top_logprobs_num(-1);
       }},
      {"logprobs is 21",
       [](auto& r) {
         r.set_return_logprob(true);
         r.set_top_logprobs_num(21);
       }},
      {"logprob_start_len is 0",
       [](auto& r) {
         r.set_return_logprob(true);
         r.set_logprob_start_len(0);
       }},
      {"max_new_tokens", [](auto& r) { r.mutable_sampling_params()->set_max_new_tokens(0); }},
      {"temperature", [](auto& r) { r.mutable_sampling_params()->set_temperature(-1); }},
      {"top_p", [](auto& r) { r.mutable_sampling_params()->set_top_p(2); }},
      {"does not tokenize", [](auto& r) { r.mutable_tokenized()->clear_input_ids(); }},
  };
  for (const auto& [text, set] : values) {
    pb::GenerateRequest request = Plain();
    set(request);
    const absl::Status status = ConvertPlain(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

TEST(SglangRequest, LogprobsAreRequestedByTheirNumber) {
  pb::GenerateRequest request = Plain();
  EXPECT_EQ(ConvertPlain(request)->request.sampling.logprobs, std::nullopt);
  request.set_return_logprob(true);
  for (const int32_t asked : {0, 20}) {
    request.set_top_logprobs_num(asked);
    EXPECT_EQ(ConvertPlain(request)->request.sampling.logprobs, static_cast<uint32_t>(asked));
  }
}

TEST(SglangRequest, WithoutALimitAWorkerMustHaveSaidIts) {
  pb::GenerateRequest request = Plain();
  request.mutable_sampling_params()->clear_max_new_tokens();
  const absl::Status status = Convert(request, "", {}).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("sampling_params.max_new_tokens is not set"));
}

TEST(PassingSglangRequest, OnlyPlainGreedyRequestsContinueElsewhere) {
  const auto passed = [](auto change) {
    pb::GenerateRequest request = Plain();
    request.mutable_sampling_params()->set_temperature(0);
    change(request, *request.mutable_sampling_params());
    gateway::RequestContext context = Context();
    context.passes = true;
    const auto converted = Convert(request, "acme", context);
    EXPECT_TRUE(converted.ok()) << converted.status();
    const auto* const message =
        PassedMessage<pb::GenerateRequest>::In(converted->request.passed.message.get());
    EXPECT_EQ(message->SerializeAsString(), request.SerializeAsString());
    EXPECT_EQ(converted->request.prompt_tokens, 3u);
    EXPECT_EQ(converted->request.max_new_tokens, 9u);
    return converted->request.passed;
  };
  EXPECT_TRUE(passed([](auto&, auto&) {}).continues);
  EXPECT_TRUE(
      passed([](auto& r, auto& s) { r.set_return_logprob(true), s.set_min_new_tokens(2); }).continues);
  EXPECT_FALSE(passed([](auto&, auto& s) { s.set_temperature(1); }).continues);
  EXPECT_FALSE(passed([](auto&, auto& s) { s.set_frequency_penalty(1); }).continues);
  EXPECT_FALSE(passed([](auto&, auto& s) { s.set_repetition_penalty(2); }).continues);
  EXPECT_FALSE(passed([](auto&, auto& s) { s.set_json_schema("{}"); }).continues);
  EXPECT_FALSE(passed([](auto&, auto& s) { s.add_stop("end"); }).continues);
  EXPECT_FALSE(passed([](auto&, auto& s) { s.mutable_custom_params(); }).continues);
  EXPECT_FALSE(passed([](auto& r, auto&) { r.set_lora_id("a"); }).continues);
  EXPECT_FALSE(passed([](auto& r, auto&) { r.set_return_hidden_states(true); }).continues);
  EXPECT_FALSE(
      passed([](auto& r, auto&) { r.set_return_logprob(true), r.set_logprob_start_len(0); }).continues);
  EXPECT_FALSE(passed([](auto& r, auto&) {
                 r.GetReflection()->MutableUnknownFields(&r)->AddVarint(99, 1);
               }).continues);
  EXPECT_FALSE(passed([](auto&, auto&) {}).kv_from_elsewhere);
  EXPECT_TRUE(passed([](auto& r, auto&) { r.mutable_disaggregated_params(); }).kv_from_elsewhere);
  EXPECT_FALSE(passed([](auto& r, auto&) { r.mutable_disaggregated_params(); }).continues);
  EXPECT_TRUE(passed([](auto& r, auto&) { r.set_stream(false); }).whole);
}

TEST(PassingSglangRequest, BlocksAreNamedWhereTokensDecideWhatIsShared) {
  const auto named = [](auto change) {
    pb::GenerateRequest request = Plain();
    for (uint32_t i = 3; i < 130; ++i) request.mutable_tokenized()->add_input_ids(i);
    change(request, *request.mutable_sampling_params());
    gateway::RequestContext context = Context();
    context.passes = true;
    const auto converted = Convert(request, "acme", context);
    EXPECT_TRUE(converted.ok()) << converted.status();
    return converted.ok() ? converted->request.prefix : nullptr;
  };
  std::vector<uint32_t> ids = {5, 6, 7};
  for (uint32_t i = 3; i < 130; ++i) ids.push_back(i);
  const core::PrefixBlocks plain = named([](auto&, auto&) {});
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(*plain, *core::NamePrefixBlocks(ids));
  const core::PrefixBlocks other = named([](auto& r, auto& s) {
    r.set_return_logprob(true), s.set_temperature(1), s.set_json_schema("{}"), s.add_stop("end");
  });
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(*other, *plain);
  EXPECT_EQ(named([](auto& r, auto&) { r.mutable_mm_inputs(); }), nullptr);
  EXPECT_EQ(named([](auto& r, auto&) { r.add_input_embeds(1); }), nullptr);
  EXPECT_EQ(named([](auto& r, auto&) { r.set_lora_id("a"); }), nullptr);
  EXPECT_EQ(named([](auto& r, auto&) { r.mutable_disaggregated_params(); }), nullptr);
  EXPECT_EQ(named([](auto& r, auto&) { r.set_return_logprob(true), r.set_logprob_start_len(0); }), nullptr);
  EXPECT_EQ(named([](auto& r, auto&) {
              r.GetReflection()->MutableUnknownFields(&r)->AddLengthDelimited(99, "extra_key");
            }),
            nullptr);
}

}  // namespace
}  // namespace bfio::router::sglang
