// The conversion of each field of a gateway's request to vLLM.
#include "router/frontend/vllm/generate_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace bfio::router::vllm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The request that SMG 1.13 (SGLang's model gateway) sends if only max_tokens is set.
pb::GenerateRequest Plain() {
  pb::GenerateRequest request;
  request.set_request_id("chatcmpl-1");
  for (const uint32_t id : {5u, 6u, 7u}) request.mutable_tokenized()->add_input_ids(id);
  pb::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  sampling.set_max_tokens(9);
  sampling.set_skip_special_tokens(true);
  sampling.set_spaces_between_special_tokens(true);
  sampling.set_n(1);
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

TEST(VllmRequest, EveryFieldThatCountsIsTaken) {
  pb::GenerateRequest request = Plain();
  pb::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_temperature(0.5);
  sampling.set_top_p(0.25);
  sampling.set_top_k(4);
  sampling.set_seed(-2);
  sampling.set_ignore_eos(true);
  sampling.add_stop_token_ids(11);
  sampling.add_stop("end");
  sampling.set_n(3);
  request.set_stream(true);
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
  EXPECT_FALSE(to.max_new_tokens_unset);
  EXPECT_THAT(to.stop_token_ids, ElementsAre(11));
  EXPECT_TRUE(to.ignore_eos);
  EXPECT_EQ(to.sampling.temperature, 0.5f);
  EXPECT_EQ(to.sampling.top_p, 0.25f);
  EXPECT_EQ(to.sampling.top_k, 4u);
  EXPECT_EQ(to.sampling.seed, 0xfffffffeu) << "32 bits, whatever their sign";
  EXPECT_FALSE(to.resumable);
  EXPECT_TRUE(to.priority_unset) << "the protocol has none";
}

TEST(VllmRequest, UnsetFieldsHaveVllmsDefaults) {
  pb::GenerateRequest request = Plain();
  request.mutable_sampling_params()->Clear();
  const auto converted = ConvertPlain(request);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->outputs, 1u);
  EXPECT_FALSE(converted->stream);
  EXPECT_TRUE(converted->special_text);
  EXPECT_EQ(converted->request.sampling.temperature, 1.0f) << "not greedy, as it would be on bfio.v1";
  EXPECT_FALSE(converted->request.sampling.top_p.has_value());
  EXPECT_FALSE(converted->request.sampling.top_k.has_value());
  EXPECT_FALSE(converted->request.sampling.seed.has_value());
  EXPECT_EQ(converted->request.max_new_tokens, 997u) << "all that the workers hold behind the prompt";
  EXPECT_TRUE(converted->request.max_new_tokens_unset);
}

// With -1 as a seed, all outputs after the first would be the same in every call: their seeds are 0, 1, ...
TEST(VllmRequest, ASeedOfMinusOneMeansNoSeed) {
  pb::GenerateRequest request = Plain();
  request.mutable_sampling_params()->set_seed(-1);
  const auto converted = ConvertPlain(request);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->request.sampling.seed, std::nullopt);
  gateway::RequestContext passing = Context();
  passing.passes = true;
  const auto passed = Convert(request, "acme", passing);
  ASSERT_TRUE(passed.ok()) << passed.status();
  EXPECT_EQ(passed->request.sampling.seed, std::nullopt);
}

TEST(VllmRequest, MaxTokensThatAreNotSetAreWithinTheLimits) {
  pb::GenerateRequest request = Plain();
  request.mutable_sampling_params()->clear_max_tokens();
  gateway::RequestContext context = Context();
  context.limits.max_new_tokens = 50;
  EXPECT_EQ(Convert(request, "", context)->request.max_new_tokens, 50u);
  context.max_sequence_tokens = 2;  // less than the prompt: the router refuses it as too long
  EXPECT_EQ(Convert(request, "", context)->request.max_new_tokens, 1u);
  context.max_sequence_tokens = 0;
  EXPECT_TRUE(absl::IsUnavailable(Convert(request, "", context).status()));
}

struct Refused {
  std::string field;
  std::function<void(pb::GenerateRequest&)> set;
};

void ExpectRefused(const std::vector<Refused>& cases, absl::string_view also) {
  for (const Refused& one : cases) {
    pb::GenerateRequest request = Plain();
    one.set(request);
    const absl::Status status = ConvertPlain(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << one.field << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.field));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(also))) << one.field;
  }
}

TEST(VllmRequest, UnsupportedFieldsAreRefusedByName) {
  const auto sampling = [](auto set) {
    return [set](pb::GenerateRequest& request) { set(*request.mutable_sampling_params()); };
  };
  using Params = pb::SamplingParams;
  ExpectRefused(
      {{"text", [](auto& r) { r.set_text("hello"); }},
       {"mm_inputs", [](auto& r) { r.mutable_mm_inputs(); }},
       {"extra_mm_inputs", [](auto& r) { r.add_extra_mm_inputs(); }},
       {"media_refs", [](auto& r) { r.mutable_media_refs(); }},
       {"kv_transfer_params", [](auto& r) { r.mutable_kv_transfer_params(); }},
       {"kv_transfer_params_json", [](auto& r) { r.set_kv_transfer_params_json("{}"); }},
       {"sampling_params.min_p", sampling([](Params& p) { p.set_min_p(0.1f); })},
       {"sampling_params.min_p", sampling([](Params& p) { p.set_min_p(NAN); })},
       {"sampling_params.frequency_penalty", sampling([](Params& p) { p.set_frequency_penalty(-1); })},
       {"sampling_params.presence_penalty", sampling([](Params& p) { p.set_presence_penalty(1); })},
       {"sampling_params.repetition_penalty", sampling([](Params& p) { p.set_repetition_penalty(1.1f); })},
       {"sampling_params.min_tokens", sampling([](Params& p) { p.set_min_tokens(1); })},
       {"sampling_params.prompt_logprobs", sampling([](Params& p) { p.set_prompt_logprobs(1); })},
       {"sampling_params.logit_bias", sampling([](Params& p) { (*p.mutable_logit_bias())[5] = 1; })},
       {"sampling_params.truncate_prompt_tokens",
        sampling([](Params& p) { p.set_truncate_prompt_tokens(-1); })},
       {"sampling_params.grammar_from_first_token",
        sampling([](Params& p) { p.set_grammar_from_first_token(true); })},
       {"sampling_params.json_schema", sampling([](Params& p) { p.set_json_schema("{}"); })},
       {"sampling_params.regex", sampling([](Params& p) { p.set_regex("a"); })},
       {"sampling_params.grammar", sampling([](Params& p) { p.set_grammar("a"); })},
       {"sampling_params.structural_tag", sampling([](Params& p) { p.set_structural_tag("a"); })},
       {"sampling_params.json_object", sampling([](Params& p) { p.set_json_object(false); })},
       {"sampling_params.choice", sampling([](Params& p) { p.mutable_choice(); })}},
      "is not supported by this engine");
}

TEST(VllmRequest, FieldsOutOfRangeAreRefusedByName) {
  const auto sampling = [](auto set) {
    return [set](pb::GenerateRequest& request) { set(*request.mutable_sampling_params()); };
  };
  using Params = pb::SamplingParams;
  ExpectRefused({{"tokenized.input_ids", [](auto& r) { r.mutable_tokenized()->clear_input_ids(); }},
                 {"tokenized.input_ids", [](auto& r) { r.clear_input(); }},
                 {"data_parallel_rank is -1", [](auto& r) { r.set_data_parallel_rank(-1); }},
                 {"request_id", [](auto& r) { r.set_request_id(std::string(129, 'x')); }},
                 {"sampling_params.n is 129", sampling([](Params& p) { p.set_n(129); })},
                 {"max_new_tokens is 0", sampling([](Params& p) { p.set_max_tokens(0); })},
                 {"max_new_tokens is 70000", sampling([](Params& p) { p.set_max_tokens(70000); })},
                 {"logprobs is -1", sampling([](Params& p) { p.set_logprobs(-1); })},
                 {"logprobs is 21", sampling([](Params& p) { p.set_logprobs(21); })},
                 {"temperature is -1", sampling([](Params& p) { p.set_temperature(-1); })},
                 {"temperature is nan", sampling([](Params& p) { p.set_temperature(NAN); })},
                 {"top_p is 1.5", sampling([](Params& p) { p.set_top_p(1.5f); })},
                 {"stop_token_ids", sampling([](Params& p) {
                    for (uint32_t id = 0; id < 65; ++id) p.add_stop_token_ids(id);
                  })},
                 {"sampling_params.stop", sampling([](Params& p) {
                    for (int i = 0; i < 17; ++i) p.add_stop("x");
                  })},
                 {"sampling_params.stop", sampling([](Params& p) { p.add_stop(""); })},
                 {"sampling_params.stop", sampling([](Params& p) { p.add_stop(std::string(257, 'x')); })}},
                "");
}

TEST(VllmRequest, ARankThatIsNamedIsKept) {
  pb::GenerateRequest request = Plain();
  EXPECT_EQ(ConvertPlain(request)->request.rank, std::nullopt);
  request.set_data_parallel_rank(0);
  EXPECT_EQ(ConvertPlain(request)->request.rank, 0u);
  request.set_data_parallel_rank(7);
  EXPECT_EQ(ConvertPlain(request)->request.rank, 7u);
}

TEST(VllmRequest, LogprobsAreRequestedByTheirNumber) {
  pb::GenerateRequest request = Plain();
  EXPECT_EQ(ConvertPlain(request)->request.sampling.logprobs, std::nullopt);
  for (const int32_t asked : {0, 20}) {
    request.mutable_sampling_params()->set_logprobs(asked);
    EXPECT_EQ(ConvertPlain(request)->request.sampling.logprobs, static_cast<uint32_t>(asked));
  }
}

TEST(VllmRequest, StopTextsNeedATokenizer) {
  pb::GenerateRequest request = Plain();
  request.mutable_sampling_params()->add_stop("x");
  gateway::RequestContext context = Context();
  context.no_stop_texts = "the router has no tokenizer";
  EXPECT_EQ(Convert(request, "", context).status(),
            absl::InvalidArgumentError("sampling_params.stop needs the model's tokenizer in the router "
                                       "(--tokenizer): the router has no tokenizer"));
}

TEST(VllmRequest, FieldsOfLaterVersionsAreRefusedByNumber) {
  const auto refused = [](const pb::GenerateRequest& request, const std::string& message) {
    const absl::Status status = ConvertPlain(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("unknown field 1023 of " + message));
  };
  const auto set = [](google::protobuf::Message& message) {
    message.GetReflection()->MutableUnknownFields(&message)->AddVarint(1023, 0);
  };
  pb::GenerateRequest request = Plain();
  set(request);
  refused(request, "GenerateRequest");
  request = Plain();
  set(*request.mutable_sampling_params());
  refused(request, "SamplingParams");
  request = Plain();
  set(*request.mutable_tokenized());
  refused(request, "TokenizedInput");
}

TEST(VllmRequest, OutputsDifferInNameAndSeed) {
  ClientRequest first;
  first.request_id = "r";
  EXPECT_EQ(OutputName(OutputOf(first, 0)), "r");
  EXPECT_EQ(OutputName(OutputOf(first, 2)), "r/2");
  EXPECT_FALSE(OutputOf(first, 2).sampling.seed.has_value()) << "each draws its own";
  first.sampling.seed = 7;
  EXPECT_EQ(OutputOf(first, 0).sampling.seed, 7u);
  EXPECT_EQ(OutputOf(first, 2).sampling.seed, 9u);
}

// --- requests that pass ---

absl::StatusOr<gateway::ConvertedRequest> PassPlain(const std::function<void(pb::GenerateRequest&)>& change) {
  pb::GenerateRequest request = Plain();
  request.set_stream(true);
  request.mutable_sampling_params()->set_temperature(0);
  change(request);
  gateway::RequestContext context = Context();
  context.passes = true;
  return Convert(request, "acme", context);
}

TEST(PassingVllmRequest, OnlyWhatTheRouterNeedsIsRead) {
  pb::GenerateRequest sent;
  const auto converted = PassPlain([&](pb::GenerateRequest& request) {
    pb::SamplingParams& sampling = *request.mutable_sampling_params();
    sampling.set_temperature(NAN);
    sampling.set_n(2);
    sampling.set_seed(-2);
    sampling.set_regex("a");
    sampling.set_logprobs(-1);
    request.set_data_parallel_rank(3);
    request.mutable_mm_inputs();
    request.GetReflection()->MutableUnknownFields(&request)->AddVarint(1023, 0);
    sampling.GetReflection()->MutableUnknownFields(&sampling)->AddVarint(1023, 0);
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
  EXPECT_EQ(request.sampling.seed, 0xfffffffeu);
  EXPECT_EQ(request.sampling.logprobs, std::nullopt);
  EXPECT_TRUE(request.priority_unset);
  EXPECT_TRUE(request.passed.on);
  EXPECT_FALSE(request.passed.whole);
  const auto* const message = PassedMessage<pb::GenerateRequest>::In(request.passed.message.get());
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->SerializeAsString(), sent.SerializeAsString());
  EXPECT_EQ(request.prompt_bytes(), static_cast<int64_t>(sent.ByteSizeLong()));
}

TEST(PassingVllmRequest, FieldsWithLimitsAreChecked) {
  const auto refused = [](const std::function<void(pb::GenerateRequest&)>& change) {
    return std::string(PassPlain(change).status().message());
  };
  EXPECT_THAT(refused([](auto& r) { r.set_data_parallel_rank(-1); }), HasSubstr("data_parallel_rank"));
  EXPECT_THAT(refused([](auto& r) { r.mutable_sampling_params()->set_n(129); }),
              HasSubstr("sampling_params.n"));
  EXPECT_THAT(refused([](auto& r) { r.clear_input(); }), HasSubstr("prompt is missing"));
  EXPECT_THAT(refused([](auto& r) { r.mutable_sampling_params()->set_max_tokens(0); }),
              HasSubstr("max_new_tokens"));
  EXPECT_THAT(refused([](auto& r) { r.set_text(std::string(1 << 20, 'a')); }), HasSubstr("prompt_length"));
  // A text prompt, and no max_tokens.
  const auto text = PassPlain([](auto& r) {
    r.set_text("some text");
    r.mutable_sampling_params()->clear_max_tokens();
  });
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->request.prompt_tokens, 3u);
  EXPECT_EQ(text->request.max_new_tokens, 997u);
  EXPECT_TRUE(text->request.max_new_tokens_unset);
}

TEST(PassingVllmRequest, OnlyPlainGreedyRequestsContinueElsewhere) {
  const auto continues = [](const std::function<void(pb::GenerateRequest&)>& change) {
    const auto converted = PassPlain(change);
    EXPECT_TRUE(converted.ok()) << converted.status();
    return converted.ok() && converted->request.passed.continues;
  };
  const auto with = [&](const std::function<void(pb::SamplingParams&)>& change) {
    return continues([&](pb::GenerateRequest& r) { change(*r.mutable_sampling_params()); });
  };
  EXPECT_TRUE(continues([](auto&) {}));
  EXPECT_TRUE(with([](auto& s) { s.set_logprobs(3), s.add_stop_token_ids(4), s.set_min_tokens(2); }));
  EXPECT_TRUE(with([](auto& s) { s.set_temperature(1), s.set_top_k(1); }));
  EXPECT_FALSE(with([](auto& s) { s.set_temperature(1); }));
  EXPECT_FALSE(with([](auto& s) { s.clear_temperature(); })) << "it is 1 then";
  EXPECT_FALSE(with([](auto& s) { s.set_presence_penalty(1); }));
  EXPECT_FALSE(with([](auto& s) { s.set_frequency_penalty(-1); }));
  EXPECT_FALSE(with([](auto& s) { s.set_repetition_penalty(1.5); }));
  EXPECT_FALSE(with([](auto& s) { s.set_json_object(true); }));
  EXPECT_FALSE(with([](auto& s) { s.add_stop("end"); }));
  EXPECT_FALSE(with([](auto& s) { s.set_prompt_logprobs(0); }));
  EXPECT_FALSE(with([](auto& s) { s.set_truncate_prompt_tokens(2); }));
  EXPECT_FALSE(with([](auto& s) { s.GetReflection()->MutableUnknownFields(&s)->AddVarint(99, 1); }));
  EXPECT_FALSE(continues([](auto& r) { r.GetReflection()->MutableUnknownFields(&r)->AddVarint(99, 1); }));
  EXPECT_FALSE(continues([](auto& r) { r.mutable_media_refs(); }));
  EXPECT_FALSE(continues([](auto& r) { r.set_text("a"); }));
  EXPECT_FALSE(continues([](auto& r) { r.set_kv_transfer_params_json("{}"); }));
}

TEST(PassingVllmRequest, BlocksAreNamedWhereTokensDecideWhatIsShared) {
  const auto named = [](const std::function<void(pb::GenerateRequest&)>& change) {
    const auto converted = PassPlain([&](pb::GenerateRequest& r) {
      for (uint32_t i = 3; i < 130; ++i) r.mutable_tokenized()->add_input_ids(i);
      change(r);
    });
    EXPECT_TRUE(converted.ok()) << converted.status();
    return converted.ok() ? converted->request.prefix : nullptr;
  };
  const auto with = [&](const std::function<void(pb::SamplingParams&)>& change) {
    return named([&](pb::GenerateRequest& r) { change(*r.mutable_sampling_params()); });
  };
  std::vector<uint32_t> ids = {5, 6, 7};
  for (uint32_t i = 3; i < 130; ++i) ids.push_back(i);
  const core::PrefixBlocks plain = named([](auto&) {});
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(*plain, *core::NamePrefixBlocks(ids));
  // Fields that concern only the generated tokens do not change the blocks' names.
  const core::PrefixBlocks other = with([](auto& s) {
    s.set_temperature(1), s.set_seed(4), s.set_regex("a"), s.add_stop("end"), s.set_logprobs(2), s.set_n(3);
  });
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(*other, *plain);
  EXPECT_EQ(named([](auto& r) { r.mutable_mm_inputs(); }), nullptr);
  EXPECT_EQ(named([](auto& r) { r.add_extra_mm_inputs(); }), nullptr);
  EXPECT_EQ(named([](auto& r) { r.mutable_media_refs(); }), nullptr);
  EXPECT_EQ(named([](auto& r) { r.set_text(std::string(600, 'a')); }), nullptr);
  EXPECT_EQ(named([](auto& r) { r.mutable_kv_transfer_params(); }), nullptr);
  EXPECT_EQ(named([](auto& r) { r.set_kv_transfer_params_json("{}"); }), nullptr);
  EXPECT_EQ(
      named([](auto& r) { r.GetReflection()->MutableUnknownFields(&r)->AddLengthDelimited(99, "lora"); }),
      nullptr);
  EXPECT_EQ(with([](auto& s) { s.set_prompt_logprobs(0); }), nullptr);
  EXPECT_EQ(with([](auto& s) { s.set_truncate_prompt_tokens(100); }), nullptr);
}

TEST(VllmRequest, BlocksAreNamedWhereRequestsGoToEnginesOfAnotherProtocol) {
  pb::GenerateRequest request = Plain();
  for (uint32_t i = 0; i < 64; ++i) request.mutable_tokenized()->add_input_ids(i);
  gateway::RequestContext context = Context();
  EXPECT_EQ(Convert(request, "acme", context)->request.prefix, nullptr);
  context.limits.name_prefixes = true;
  const auto converted = Convert(request, "acme", context);
  ASSERT_TRUE(converted.ok() && converted->request.prefix != nullptr) << converted.status();
  EXPECT_EQ(*converted->request.prefix, *core::NamePrefixBlocks(converted->request.prompt));
}

TEST(PassingVllmRequest, KvComesFromAnotherEngineWhereTheRequestNamesIt) {
  const auto elsewhere = [](const std::function<void(pb::GenerateRequest&)>& change) {
    const auto converted = PassPlain(change);
    return converted.ok() && converted->request.passed.kv_from_elsewhere;
  };
  EXPECT_FALSE(elsewhere([](auto&) {}));
  EXPECT_TRUE(elsewhere([](auto& r) { r.mutable_kv_transfer_params(); }));
  EXPECT_TRUE(
      elsewhere([](auto& r) { r.set_kv_transfer_params_json(R"({"do_remote_prefill":true,"a":[]})"); }));
  for (const char* json : {R"({"do_remote_prefill":false,"do_remote_decode":true})", "{", "[]", "",
                           R"({"do_remote_prefill":"true"})"})
    EXPECT_FALSE(elsewhere([&](auto& r) { r.set_kv_transfer_params_json(json); })) << json;
}

}  // namespace
}  // namespace bfio::router::vllm
