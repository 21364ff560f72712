// The conversion of the fields of a gateway's request that all protocols have.
#include "router/frontend/gateway/request_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/router/frontend/gateway/protocols.h"

namespace bfio::router::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void AddUnknown(google::protobuf::Message& message) {
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(1023, 1);
}

template <typename P>
class GatewayRequest : public ::testing::Test {
 protected:
  using Request = typename P::GenerateRequest;
  using Params = typename P::SamplingParams;
  // Changes a request and its sampling parameters.
  using Set = std::function<void(Request&, Params&)>;

  static Request With(const Set& set, Request request = PlainOf<P>()) {
    set(request, *request.mutable_sampling_params());
    return request;
  }
  // `text`: part of the message of the refusal.
  static void ExpectRefused(const std::string& text, const Set& set) {
    const absl::Status status = ConvertTo<P>(With(set)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  static void ExpectUnsupported(const std::string& field, const Set& set) {
    ExpectRefused(absl::StrCat("sampling_params.", field, " is not supported by this engine"), set);
  }
  static absl::StatusOr<ConvertedRequest> Pass(const Set& set, Request request = PlainOf<P>()) {
    request.set_stream(true);
    return ConvertTo<P>(With(set, std::move(request)), PlainContext(/*passes=*/true));
  }
};
TYPED_TEST_SUITE(GatewayRequest, bfio::testing::EngineProtocols, bfio::testing::ProtocolNames);

TYPED_TEST(GatewayRequest, EveryFieldThatCountsIsTaken) {
  const auto converted = ConvertTo<TypeParam>(this->With([](auto& request, auto& sampling) {
    sampling.set_temperature(0.5);
    sampling.set_top_p(0.25);
    sampling.set_top_k(4);
    sampling.set_ignore_eos(true);
    sampling.add_stop_token_ids(11);
    sampling.add_stop("end");
    sampling.set_n(3);
    request.set_stream(true);
  }));
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
  EXPECT_FALSE(to.max_new_tokens_unset);
  EXPECT_THAT(to.stop_token_ids, ElementsAre(11));
  EXPECT_TRUE(to.ignore_eos);
  EXPECT_EQ(to.sampling.temperature, 0.5f);
  EXPECT_EQ(to.sampling.top_p, 0.25f);
  EXPECT_EQ(to.sampling.top_k, 4u);
  EXPECT_EQ(to.sampling.seed, std::nullopt);
  EXPECT_EQ(to.sampling.logprobs, std::nullopt);
  EXPECT_EQ(to.rank, std::nullopt);
  EXPECT_FALSE(to.resumable);
  EXPECT_TRUE(to.priority_unset) << "the protocols have none";
}

TYPED_TEST(GatewayRequest, UnsetFieldsHaveTheProtocolsDefaults) {
  const auto converted = ConvertTo<TypeParam>(this->With([](auto&, auto& sampling) { sampling.Clear(); }));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->outputs, 1u);
  EXPECT_FALSE(converted->stream);
  EXPECT_TRUE(converted->special_text);
  constexpr bool kSamples = std::is_same_v<TypeParam, bfio::testing::Vllm>;
  EXPECT_EQ(converted->request.sampling.temperature, kSamples ? 1.0f : 0.0f)
      << "vLLM samples, unlike SGLang and bfio.v1";
  EXPECT_EQ(converted->request.sampling.top_p, std::nullopt);
  EXPECT_EQ(converted->request.sampling.top_k, std::nullopt);
  EXPECT_EQ(converted->request.max_new_tokens, 997u) << "all that fits behind the prompt";
  EXPECT_TRUE(converted->request.max_new_tokens_unset);
}

TYPED_TEST(GatewayRequest, MaxTokensThatAreNotSetAreWithinTheLimits) {
  const auto request = this->With([](auto&, auto& sampling) { TypeParam::ClearMaxTokens(sampling); });
  RequestContext context = PlainContext();
  context.limits.max_new_tokens = 50;
  EXPECT_EQ(ConvertTo<TypeParam>(request, context)->request.max_new_tokens, 50u);
  context.max_sequence_tokens = 2;  // less than the prompt: the router refuses it as too long
  EXPECT_EQ(ConvertTo<TypeParam>(request, context)->request.max_new_tokens, 1u);
  context.max_sequence_tokens = 0;
  const absl::Status unknown = ConvertTo<TypeParam>(request, context).status();
  EXPECT_TRUE(absl::IsUnavailable(unknown));
  EXPECT_THAT(std::string(unknown.message()),
              HasSubstr(absl::StrCat("sampling_params.", TypeParam::kMaxTokens, " is not set")));
}

TYPED_TEST(GatewayRequest, UnsupportedFieldsAreRefusedByName) {
  this->ExpectUnsupported("min_p", [](auto&, auto& s) { s.set_min_p(0.1f); });
  this->ExpectUnsupported("min_p", [](auto&, auto& s) { s.set_min_p(NAN); });
  this->ExpectUnsupported("frequency_penalty", [](auto&, auto& s) { s.set_frequency_penalty(-1); });
  this->ExpectUnsupported("presence_penalty", [](auto&, auto& s) { s.set_presence_penalty(1); });
  this->ExpectUnsupported("repetition_penalty", [](auto&, auto& s) { s.set_repetition_penalty(1.1f); });
  this->ExpectUnsupported("logit_bias", [](auto&, auto& s) { (*s.mutable_logit_bias())[{}] = 1; });
  this->ExpectUnsupported("json_schema", [](auto&, auto& s) { s.set_json_schema("{}"); });
  this->ExpectUnsupported("regex", [](auto&, auto& s) { s.set_regex(""); });
  this->ExpectUnsupported("structural_tag", [](auto&, auto& s) { s.set_structural_tag("a"); });
  this->ExpectRefused("mm_inputs is not supported", [](auto& r, auto&) { r.mutable_mm_inputs(); });
}

TYPED_TEST(GatewayRequest, FieldsOutOfRangeAreRefusedWithTheirLimits) {
  this->ExpectRefused("tokenized.input_ids is empty", [](auto& r, auto&) { r.clear_tokenized(); });
  this->ExpectRefused("does not tokenize", [](auto& r, auto&) { r.mutable_tokenized()->clear_input_ids(); });
  this->ExpectRefused("data_parallel_rank is -1", [](auto& r, auto&) { r.set_data_parallel_rank(-1); });
  this->ExpectRefused("request_id", [](auto& r, auto&) { r.set_request_id(std::string(129, 'x')); });
  this->ExpectRefused("sampling_params.n is 129", [](auto&, auto& s) { s.set_n(129); });
  this->ExpectRefused("max_new_tokens is 0", [](auto&, auto& s) { TypeParam::SetMaxTokens(s, 0); });
  this->ExpectRefused("max_new_tokens is 70000", [](auto&, auto& s) { TypeParam::SetMaxTokens(s, 70000); });
  this->ExpectRefused("logprobs is 21", [](auto& r, auto&) { TypeParam::RequestLogprobs(r, 21); });
  this->ExpectRefused("is -1", [](auto& r, auto&) { TypeParam::RequestLogprobs(r, -1); });
  this->ExpectRefused("temperature is -1", [](auto&, auto& s) { s.set_temperature(-1); });
  this->ExpectRefused("temperature is nan", [](auto&, auto& s) { s.set_temperature(NAN); });
  this->ExpectRefused("top_p is 1.5", [](auto&, auto& s) { s.set_top_p(1.5f); });
  this->ExpectRefused("stop_token_ids", [](auto&, auto& s) {
    for (uint32_t id = 0; id < 65; ++id) s.add_stop_token_ids(id);
  });
  this->ExpectRefused("sampling_params.stop", [](auto&, auto& s) {
    for (int i = 0; i < 17; ++i) s.add_stop("x");
  });
  this->ExpectRefused("sampling_params.stop", [](auto&, auto& s) { s.add_stop(""); });
  this->ExpectRefused("sampling_params.stop", [](auto&, auto& s) { s.add_stop(std::string(257, 'x')); });
}

TYPED_TEST(GatewayRequest, ARankThatIsNamedIsKept) {
  for (const uint32_t rank : {0u, 7u}) {
    const auto request =
        this->With([&](auto& r, auto&) { r.set_data_parallel_rank(static_cast<int32_t>(rank)); });
    EXPECT_EQ(ConvertTo<TypeParam>(request)->request.rank, rank);
  }
}

TYPED_TEST(GatewayRequest, LogprobsAreRequestedByTheirNumber) {
  for (const int32_t asked : {0, 20}) {
    const auto request = this->With([&](auto& r, auto&) { TypeParam::RequestLogprobs(r, asked); });
    EXPECT_EQ(ConvertTo<TypeParam>(request)->request.sampling.logprobs, static_cast<uint32_t>(asked));
  }
}

TYPED_TEST(GatewayRequest, StopTextsNeedATokenizer) {
  RequestContext context = PlainContext();
  context.no_stop_texts = "the router has no tokenizer";
  EXPECT_EQ(ConvertTo<TypeParam>(this->With([](auto&, auto& s) { s.add_stop("x"); }), context).status(),
            absl::InvalidArgumentError("sampling_params.stop needs the model's tokenizer in the router "
                                       "(--tokenizer): the router has no tokenizer"));
}

TYPED_TEST(GatewayRequest, FieldsOfLaterVersionsAreRefusedByNumber) {
  const std::string unknown = "unknown field 1023 of ";
  this->ExpectRefused(unknown + "GenerateRequest", [](auto& r, auto&) { AddUnknown(r); });
  this->ExpectRefused(unknown + "SamplingParams", [](auto&, auto& s) { AddUnknown(s); });
  this->ExpectRefused(unknown + "TokenizedInput", [](auto& r, auto&) { AddUnknown(*r.mutable_tokenized()); });
}

TYPED_TEST(GatewayRequest, BlocksAreNamedWhereRequestsGoToEnginesOfAnotherProtocol) {
  const auto request = this->With([](auto& r, auto&) {
    for (uint32_t i = 0; i < 64; ++i) r.mutable_tokenized()->add_input_ids(i);
  });
  RequestContext context = PlainContext();
  EXPECT_EQ(ConvertTo<TypeParam>(request, context)->request.prefix, nullptr);
  context.limits.name_prefixes = true;
  const auto converted = ConvertTo<TypeParam>(request, context);
  ASSERT_TRUE(converted.ok() && converted->request.prefix != nullptr) << converted.status();
  EXPECT_EQ(*converted->request.prefix, *core::NamePrefixBlocks(converted->request.prompt));
}

// --- requests that pass ---

TYPED_TEST(GatewayRequest, OfARequestThatPassesOnlyWhatTheRouterNeedsIsRead) {
  typename TypeParam::GenerateRequest sent;
  const auto converted = this->Pass([&](auto& request, auto& sampling) {
    sampling.set_temperature(NAN);
    sampling.set_n(2);
    sampling.set_regex("a");
    TypeParam::RequestLogprobs(request, -1);
    request.set_data_parallel_rank(3);
    request.mutable_mm_inputs();
    AddUnknown(request);
    AddUnknown(sampling);
    sent = request;
  });
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->outputs, 2u);
  EXPECT_TRUE(converted->stream);
  const ClientRequest& request = converted->request;
  EXPECT_EQ(request.request_id, "chatcmpl-1");
  EXPECT_EQ(request.tenant, "acme");
  EXPECT_TRUE(request.prompt.empty()) << "it is in the message";
  EXPECT_EQ(request.prompt_tokens, 3u);
  EXPECT_EQ(request.max_new_tokens, 9u);
  EXPECT_EQ(request.rank, 3u);
  EXPECT_EQ(request.sampling.logprobs, std::nullopt);
  EXPECT_TRUE(request.priority_unset);
  EXPECT_TRUE(request.passed.on);
  EXPECT_FALSE(request.passed.whole);
  EXPECT_FALSE(request.passed.kv_from_elsewhere);
  const auto* const message =
      PassedMessage<typename TypeParam::GenerateRequest>::In(request.passed.message.get());
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->SerializeAsString(), sent.SerializeAsString());
  EXPECT_EQ(request.prompt_bytes(), static_cast<int64_t>(sent.ByteSizeLong()));
  auto whole = PlainOf<TypeParam>();
  EXPECT_TRUE(ConvertTo<TypeParam>(whole, PlainContext(/*passes=*/true))->request.passed.whole);
}

TYPED_TEST(GatewayRequest, LimitsHoldForRequestsThatPass) {
  const auto refusal = [this](auto set) { return std::string(this->Pass(set).status().message()); };
  EXPECT_THAT(refusal([](auto& r, auto&) { r.set_data_parallel_rank(-1); }), HasSubstr("data_parallel_rank"));
  EXPECT_THAT(refusal([](auto&, auto& s) { s.set_n(129); }), HasSubstr("sampling_params.n"));
  EXPECT_THAT(refusal([](auto& r, auto&) { r.clear_tokenized(); }), HasSubstr("prompt is missing"));
  EXPECT_THAT(refusal([](auto&, auto& s) { TypeParam::SetMaxTokens(s, 0); }), HasSubstr("max_new_tokens"));
}

TYPED_TEST(GatewayRequest, OnlyPlainGreedyRequestsContinueElsewhere) {
  const auto continues = [this](auto set) {
    const auto converted = this->Pass(set);
    EXPECT_TRUE(converted.ok()) << converted.status();
    return converted.ok() && converted->request.passed.continues;
  };
  EXPECT_TRUE(continues([](auto&, auto&) {}));
  EXPECT_TRUE(continues([](auto& r, auto& s) {
    TypeParam::RequestLogprobs(r, 3), s.add_stop_token_ids(4), TypeParam::SetMinTokens(s, 2);
  }));
  EXPECT_TRUE(continues([](auto&, auto& s) { s.set_temperature(1), s.set_top_k(1); }));
  EXPECT_FALSE(continues([](auto&, auto& s) { s.set_temperature(1); }));
  EXPECT_FALSE(continues([](auto&, auto& s) { s.set_presence_penalty(1); }));
  EXPECT_FALSE(continues([](auto&, auto& s) { s.set_frequency_penalty(-1); }));
  EXPECT_FALSE(continues([](auto&, auto& s) { s.set_repetition_penalty(1.5); }));
  EXPECT_FALSE(continues([](auto&, auto& s) { s.set_json_schema("{}"); }));
  EXPECT_FALSE(continues([](auto&, auto& s) { s.add_stop("end"); }));
  EXPECT_FALSE(continues([](auto& r, auto&) { r.mutable_mm_inputs(); }));
  EXPECT_FALSE(continues([](auto& r, auto&) { AddUnknown(r); }));
  EXPECT_FALSE(continues([](auto&, auto& s) { AddUnknown(s); }));
}

TYPED_TEST(GatewayRequest, BlocksAreNamedWhereTokensDecideWhatIsShared) {
  std::vector<uint32_t> ids = {5, 6, 7};
  for (uint32_t i = 3; i < 130; ++i) ids.push_back(i);
  const auto named = [&](auto set) {
    auto request = PlainOf<TypeParam>();
    request.mutable_tokenized()->mutable_input_ids()->Assign(ids.begin(), ids.end());
    const auto converted = this->Pass(set, std::move(request));
    EXPECT_TRUE(converted.ok()) << converted.status();
    return converted.ok() ? converted->request.prefix : nullptr;
  };
  const core::PrefixBlocks plain = named([](auto&, auto&) {});
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(*plain, *core::NamePrefixBlocks(ids));
  // Fields that concern only the generated tokens do not change the blocks' names.
  const core::PrefixBlocks other = named([](auto& r, auto& s) {
    TypeParam::RequestLogprobs(r, 2);
    s.set_temperature(1), s.set_regex("a"), s.add_stop("end"), s.set_n(3);
  });
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(*other, *plain);
  EXPECT_EQ(named([](auto& r, auto&) { r.mutable_mm_inputs(); }), nullptr);
  EXPECT_EQ(named([](auto& r, auto&) {
              r.GetReflection()->MutableUnknownFields(&r)->AddLengthDelimited(99, "lora");
            }),
            nullptr);
}

TEST(OutputOf, OutputsDifferInNameAndSeed) {
  ClientRequest first;
  first.request_id = "r";
  EXPECT_EQ(OutputName(OutputOf(first, 0)), "r");
  EXPECT_EQ(OutputName(OutputOf(first, 2)), "r/2");
  EXPECT_FALSE(OutputOf(first, 2).sampling.seed.has_value()) << "each draws its own";
  first.sampling.seed = 7;
  EXPECT_EQ(OutputOf(first, 0).sampling.seed, 7u);
  EXPECT_EQ(OutputOf(first, 2).sampling.seed, 9u);
}

// --- fields of one protocol ---

using VllmRequest = GatewayRequest<bfio::testing::Vllm>;
using SglangRequest = GatewayRequest<bfio::testing::Sglang>;

TEST_F(VllmRequest, FieldsOfVllmAloneAreRefusedByName) {
  ExpectRefused("text (a prompt that is not tokenized) is not", [](auto& r, auto&) { r.set_text("hello"); });
  ExpectRefused("extra_mm_inputs is not", [](auto& r, auto&) { r.add_extra_mm_inputs(); });
  ExpectRefused("media_refs is not", [](auto& r, auto&) { r.mutable_media_refs(); });
  ExpectRefused("kv_transfer_params is not", [](auto& r, auto&) { r.mutable_kv_transfer_params(); });
  ExpectRefused("kv_transfer_params_json is not",
                [](auto& r, auto&) { r.set_kv_transfer_params_json("{}"); });
  ExpectUnsupported("min_tokens", [](auto&, auto& s) { s.set_min_tokens(1); });
  ExpectUnsupported("prompt_logprobs", [](auto&, auto& s) { s.set_prompt_logprobs(1); });
  ExpectUnsupported("truncate_prompt_tokens", [](auto&, auto& s) { s.set_truncate_prompt_tokens(-1); });
  ExpectUnsupported("grammar_from_first_token", [](auto&, auto& s) { s.set_grammar_from_first_token(true); });
  ExpectUnsupported("grammar", [](auto&, auto& s) { s.set_grammar("a"); });
  ExpectUnsupported("json_object", [](auto&, auto& s) { s.set_json_object(false); });
  ExpectUnsupported("choice", [](auto&, auto& s) { s.mutable_choice(); });
}

// With -1 as a seed, all outputs after the first would be the same in every call: their seeds are 0, 1, ...
TEST_F(VllmRequest, ASeedHas32BitsAndMinusOneMeansNone) {
  for (const bool passes : {false, true}) {
    const auto seed = [&](int32_t sent) {
      return ConvertTo<bfio::testing::Vllm>(With([&](auto&, auto& s) { s.set_seed(sent); }),
                                            PlainContext(passes))
          ->request.sampling.seed;
    };
    EXPECT_EQ(seed(-2), 0xfffffffeu);
    EXPECT_EQ(seed(-1), std::nullopt);
  }
}

TEST_F(VllmRequest, ATextMayPass) {
  const auto text = Pass([](auto& r, auto& s) {
    r.set_text("some text");
    s.clear_max_tokens();
  });
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->request.prompt_tokens, 3u);
  EXPECT_EQ(text->request.max_new_tokens, 997u);
  EXPECT_TRUE(text->request.max_new_tokens_unset);
  EXPECT_FALSE(text->request.passed.continues);
  EXPECT_THAT(
      std::string(Pass([](auto& r, auto&) { r.set_text(std::string(1 << 20, 'a')); }).status().message()),
      HasSubstr("prompt_length"));
}

TEST_F(VllmRequest, FieldsOfVllmAloneMayPreventContinuationAndSharing) {
  struct Case {
    Set set;
    bool continues, shares;
  };
  const std::vector<Case> cases = {
      {[](auto&, auto& s) { s.set_seed(4); }, true, true},
      {[](auto&, auto& s) { s.clear_temperature(); }, false, true},  // it is 1 then
      {[](auto&, auto& s) { s.set_json_object(true); }, false, true},
      {[](auto&, auto& s) { s.set_prompt_logprobs(0); }, false, false},
      {[](auto&, auto& s) { s.set_truncate_prompt_tokens(100); }, false, false},
      {[](auto& r, auto&) { r.add_extra_mm_inputs(); }, false, false},
      {[](auto& r, auto&) { r.mutable_media_refs(); }, false, false},
      {[](auto& r, auto&) { r.set_text(std::string(600, 'a')); }, false, false},
      {[](auto& r, auto&) { r.mutable_kv_transfer_params(); }, false, false},
      {[](auto& r, auto&) { r.set_kv_transfer_params_json("{}"); }, false, false},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    auto request = PlainOf<bfio::testing::Vllm>();
    for (uint32_t id = 0; id < 130; ++id) request.mutable_tokenized()->add_input_ids(id);
    const auto converted = Pass(cases[i].set, std::move(request));
    ASSERT_TRUE(converted.ok()) << i << converted.status();
    EXPECT_EQ(converted->request.passed.continues, cases[i].continues) << i;
    EXPECT_EQ(converted->request.prefix != nullptr, cases[i].shares) << i;
  }
}

TEST_F(VllmRequest, KvComesFromAnotherEngineWhereTheRequestNamesIt) {
  const auto elsewhere = [](const Set& set) { return Pass(set)->request.passed.kv_from_elsewhere; };
  EXPECT_TRUE(elsewhere([](auto& r, auto&) { r.mutable_kv_transfer_params(); }));
  EXPECT_TRUE(elsewhere(
      [](auto& r, auto&) { r.set_kv_transfer_params_json(R"({"do_remote_prefill":true,"a":[]})"); }));
  for (const char* json : {R"({"do_remote_prefill":false,"do_remote_decode":true})", "{", "[]", "",
                           R"({"do_remote_prefill":"true"})"})
    EXPECT_FALSE(elsewhere([&](auto& r, auto&) { r.set_kv_transfer_params_json(json); })) << json;
}

TEST_F(SglangRequest, FieldsOfSglangAloneAreRefusedByName) {
  ExpectRefused("input_embeds is not", [](auto& r, auto&) { r.add_input_embeds(1); });
  ExpectRefused("return_hidden_states is not", [](auto& r, auto&) { r.set_return_hidden_states(true); });
  ExpectRefused("disaggregated_params is not", [](auto& r, auto&) { r.mutable_disaggregated_params(); });
  ExpectRefused("custom_logit_processor is not", [](auto& r, auto&) { r.set_custom_logit_processor("x"); });
  ExpectRefused("lora_id is not", [](auto& r, auto&) { r.set_lora_id("x"); });
  ExpectRefused("top_logprobs_num without return_logprob is not",
                [](auto& r, auto&) { r.set_top_logprobs_num(1); });
  ExpectRefused("token_ids_logprob is not", [](auto& r, auto&) { r.add_token_ids_logprob(1); });
  ExpectUnsupported("min_new_tokens", [](auto&, auto& s) { s.set_min_new_tokens(1); });
  ExpectUnsupported("stream_interval", [](auto&, auto& s) { s.set_stream_interval(8); });
  ExpectUnsupported("custom_params", [](auto&, auto& s) { s.mutable_custom_params(); });
  ExpectUnsupported("ebnf_grammar", [](auto&, auto& s) { s.set_ebnf_grammar("x"); });
  ExpectRefused("sampling_params.top_k is -2", [](auto&, auto& s) { s.set_top_k(-2); });
  ExpectRefused("logprob_start_len is 0",
                [](auto& r, auto&) { r.set_return_logprob(true), r.set_logprob_start_len(0); });
}

TEST_F(SglangRequest, FieldsWithoutEffectAreAccepted) {
  const auto converted = ConvertTo<bfio::testing::Sglang>(With([](auto& r, auto& s) {
    r.mutable_timestamp()->set_seconds(5);
    r.set_log_metrics(true);
    r.set_require_reasoning(true);
    r.set_logprob_start_len(3);
    s.set_no_stop_trim(true);
    s.set_stream_interval(1);
  }));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->request.sampling.top_k, std::nullopt) << "-1 is all tokens";
}

TEST_F(SglangRequest, FieldsOfSglangAloneMayPreventContinuationAndSharing) {
  struct Case {
    Set set;
    bool continues, shares, kv_from_elsewhere = false;
  };
  const std::vector<Case> cases = {
      {[](auto& r, auto&) { r.set_return_logprob(true); }, true, true},
      {[](auto&, auto& s) { s.mutable_custom_params(); }, false, true},
      {[](auto& r, auto&) { r.set_lora_id("a"); }, false, false},
      {[](auto& r, auto&) { r.set_return_hidden_states(true); }, false, false},
      {[](auto& r, auto&) { r.add_input_embeds(1); }, false, false},
      {[](auto& r, auto&) { r.set_return_logprob(true), r.set_logprob_start_len(0); }, false, false},
      {[](auto& r, auto&) { r.mutable_disaggregated_params(); }, false, false, true},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    auto request = PlainOf<bfio::testing::Sglang>();
    for (uint32_t id = 0; id < 130; ++id) request.mutable_tokenized()->add_input_ids(id);
    const auto converted = Pass(cases[i].set, std::move(request));
    ASSERT_TRUE(converted.ok()) << i << converted.status();
    EXPECT_EQ(converted->request.passed.continues, cases[i].continues) << i;
    EXPECT_EQ(converted->request.prefix != nullptr, cases[i].shares) << i;
    EXPECT_EQ(converted->request.passed.kv_from_elsewhere, cases[i].kv_from_elsewhere) << i;
  }
}

}  // namespace
}  // namespace bfio::router::gateway
