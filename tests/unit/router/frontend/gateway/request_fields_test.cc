// The conversion of gateways' requests.
#include "router/frontend/gateway/request_fields.h"

#include <gmock/gmock.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/router/frontend/gateway/protocols.h"

namespace bfio::router::gateway {
namespace {

using bfio::testing::FromText;
using bfio::testing::Sglang;
using bfio::testing::Vllm;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
// Changes of a request, with what they cause.
using Rows = std::vector<std::pair<std::string, std::string>>;

void AddUnknown(google::protobuf::Message& message) {
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(1023, 1);
}
// A change of the sampling parameters; a field of so many bytes.
std::string Sampling(const std::string& change) {
  return absl::StrCat(" sampling_params { ", change, " }");
}
std::string Long(const char* field, size_t bytes) {
  return absl::StrCat(field, ": '", std::string(bytes, 'a'), "'");
}
std::string Times(const char* text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) absl::StrAppend(&all, text, " ");
  return all;
}

template <typename P>
class GatewayRequest : public ::testing::Test {
 protected:
  using Request = typename P::GenerateRequest;
  static constexpr bool kVllm = std::is_same_v<P, Vllm>;

  static Request With(const std::string& change) { return FromText(change, PlainOf<P>()); }
  static std::string MaxTokens(int tokens) { return Sampling(absl::StrCat(P::kMaxTokens, ": ", tokens)); }
  static std::string Logprobs(int top) {
    return kVllm ? Sampling(absl::StrCat("logprobs: ", top))
                 : absl::StrCat("return_logprob: true logprob_start_len: -1 top_logprobs_num: ", top);
  }
  // `common`, and then those of this protocol.
  template <typename T>
  static std::vector<T> All(std::vector<T> common, const std::vector<T>& vllm, const std::vector<T>& sglang) {
    const std::vector<T>& own = kVllm ? vllm : sglang;
    common.insert(common.end(), own.begin(), own.end());
    return common;
  }
  // `text`: part of the message of the refusal.
  static void ExpectRefused(const Request& request, const std::string& text, bool passes = false) {
    const absl::Status status = ConvertTo<P>(request, PlainContext(passes)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  // Of a streamed request that passes.
  static ConvertedRequest Pass(Request request) {
    request.set_stream(true);
    auto converted = ConvertTo<P>(std::move(request), PlainContext(/*passes=*/true));
    EXPECT_TRUE(converted.ok()) << converted.status();
    return converted.ok() ? *std::move(converted) : ConvertedRequest();
  }
};
TYPED_TEST_SUITE(GatewayRequest, bfio::testing::EngineProtocols, bfio::testing::ProtocolNames);
using VllmRequest = GatewayRequest<Vllm>;
using SglangRequest = GatewayRequest<Sglang>;

TYPED_TEST(GatewayRequest, EveryFieldThatCountsIsTaken) {
  const auto converted = ConvertTo<TypeParam>(this->With(
      "stream: true " + Sampling("temperature: 0.5 top_p: 0.25 top_k: 4 ignore_eos: true stop_token_ids: 11 "
                                 "stop: 'end' n: 3")));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(std::tie(converted->outputs, converted->stream, converted->special_text),
            std::tuple(3, true, false));
  EXPECT_THAT(converted->stops, ElementsAre("end"));
  const ClientRequest& to = converted->request;
  EXPECT_EQ(std::tie(to.request_id, to.tenant, to.prompt_tokens, to.max_new_tokens, to.max_new_tokens_unset,
                     to.ignore_eos, to.resumable, to.priority_unset),
            std::tuple("chatcmpl-1", "acme", 3, 9, false, true, false, true));
  EXPECT_EQ(std::tie(to.sampling.temperature, to.sampling.top_p, to.sampling.top_k),
            std::tuple(0.5f, 0.25f, 4u));
  EXPECT_FALSE(to.sampling.seed || to.sampling.logprobs || to.rank);
  EXPECT_THAT(to.prompt, ElementsAre(5, 6, 7));
  EXPECT_THAT(to.stop_token_ids, ElementsAre(11));
  for (const uint32_t rank : {0u, 7u}) {
    const auto request = this->With(absl::StrCat("data_parallel_rank: ", rank));
    EXPECT_EQ(ConvertTo<TypeParam>(request)->request.rank, rank);
  }
  for (const uint32_t top : {0u, 20u})
    EXPECT_EQ(ConvertTo<TypeParam>(this->With(this->Logprobs(top)))->request.sampling.logprobs, top);
}

TYPED_TEST(GatewayRequest, UnsetFieldsHaveTheProtocolsDefaults) {
  auto request = PlainOf<TypeParam>();
  request.mutable_sampling_params()->Clear();
  const auto converted = ConvertTo<TypeParam>(request);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(std::tie(converted->outputs, converted->stream, converted->special_text),
            std::tuple(1, false, true));
  EXPECT_EQ(converted->request.sampling.temperature, TestFixture::kVllm ? 1.0f : 0.0f)
      << "vLLM samples, unlike SGLang and bfio.v1";
  EXPECT_FALSE(converted->request.sampling.top_p || converted->request.sampling.top_k);
  EXPECT_EQ(converted->request.max_new_tokens, 997u) << "all that fits behind the prompt";
  EXPECT_TRUE(converted->request.max_new_tokens_unset);
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
  for (const std::string& field : this->template All<std::string>(
           {"min_p: 0.1", "min_p: nan", "frequency_penalty: -1", "presence_penalty: 1", "json_schema: '{}'",
            "repetition_penalty: 1.1", "logit_bias { value: 1 }", "regex: ''", "structural_tag: 'a'"},
           {"min_tokens: 1", "prompt_logprobs: 1", "truncate_prompt_tokens: -1", "json_object: false",
            "grammar_from_first_token: true", "grammar: 'a'", "choice {}"},
           {"min_new_tokens: 1", "stream_interval: 8", "custom_params {}", "ebnf_grammar: 'x'"}))
    this->ExpectRefused(this->With(Sampling(field)),
                        absl::StrCat("sampling_params.", field.substr(0, field.find_first_of(": ")),
                                     " is not supported by this engine"));
  for (const auto& [change, text] :
       this->All(Rows{{"mm_inputs {}", "mm_inputs is not supported"}},
                 {{"text: 'hello'", "text (a prompt that is not tokenized) is not"},
                  {"extra_mm_inputs {}", "extra_mm_inputs is not"},
                  {"media_refs {}", "media_refs is not"},
                  {"kv_transfer_params {}", "kv_transfer_params is not"},
                  {"kv_transfer_params_json: '{}'", "kv_transfer_params_json is not"}},
                 {{"input_embeds: 1", "input_embeds is not"},
                  {"return_hidden_states: true", "return_hidden_states is not"},
                  {"disaggregated_params {}", "disaggregated_params is not"},
                  {"custom_logit_processor: 'x'", "custom_logit_processor is not"},
                  {"lora_id: 'x'", "lora_id is not"},
                  {"top_logprobs_num: 1", "top_logprobs_num without return_logprob is not"},
                  {"token_ids_logprob: 1", "token_ids_logprob is not"},
                  {"return_logprob: true logprob_start_len: 0", "logprob_start_len is 0"},
                  {Sampling("top_k: -2"), "sampling_params.top_k is -2"}}))
    this->ExpectRefused(this->With(change), text);
  // Fields of later versions, by number.
  auto request = PlainOf<TypeParam>(), params = request, prompt = request;
  AddUnknown(request);
  this->ExpectRefused(request, "unknown field 1023 of GenerateRequest");
  AddUnknown(*params.mutable_sampling_params());
  this->ExpectRefused(params, "unknown field 1023 of SamplingParams");
  AddUnknown(*prompt.mutable_tokenized());
  this->ExpectRefused(prompt, "unknown field 1023 of TokenizedInput");
}

TYPED_TEST(GatewayRequest, FieldsOutOfRangeAreRefusedWithTheirLimits) {
  auto none = PlainOf<TypeParam>(), text = none;
  none.clear_tokenized();
  this->ExpectRefused(none, "tokenized.input_ids is empty");
  this->ExpectRefused(none, "prompt is missing", /*passes=*/true);
  text.mutable_tokenized()->set_original_text("abc");
  text.mutable_tokenized()->clear_input_ids();
  this->ExpectRefused(text, "does not tokenize");
  for (const auto& [change, refusal] : Rows{
           {"data_parallel_rank: -1", "data_parallel_rank is -1"},
           {Sampling("n: 129"), "sampling_params.n is 129"},
           {this->MaxTokens(0), absl::StrCat("sampling_params.", TypeParam::kMaxTokens, " is 0")},
       }) {
    this->ExpectRefused(this->With(change), refusal);
    this->ExpectRefused(this->With(change), refusal, /*passes=*/true);
  }
  for (const auto& [change, refusal] : Rows{
           {Long("request_id", 129), "request_id"},
           {this->MaxTokens(70'000), absl::StrCat("sampling_params.", TypeParam::kMaxTokens, " is 70000")},
           {this->Logprobs(21), this->kVllm ? "sampling_params.logprobs is 21" : "top_logprobs_num is 21"},
           {this->Logprobs(-1), "is -1"},
           {Sampling("temperature: -1"), "sampling_params.temperature is -1"},
           {Sampling("temperature: nan"), "temperature is nan"},
           {Sampling("top_p: 1.5"), "sampling_params.top_p is 1.5"},
           {Sampling(Times("stop_token_ids: 7", 65)), "the number of sampling_params.stop_token_ids is 65"},
           {absl::StrCat("tokenized { ", Times("input_ids: 7", PlainContext().limits.max_prompt_tokens),
                         " }"),
            "the number of tokenized.input_ids is"},
           {Sampling(Times("stop: 'x'", 17)), "sampling_params.stop"},
           {Sampling("stop: ''"), "sampling_params.stop"},
           {Sampling(Long("stop", 257)), "sampling_params.stop"},
       })
    this->ExpectRefused(this->With(change), refusal);
}

TYPED_TEST(GatewayRequest, StopTextsNeedATokenizer) {
  RequestContext context = PlainContext();
  context.no_stop_texts = "the router has no tokenizer";
  EXPECT_EQ(ConvertTo<TypeParam>(this->With(Sampling("stop: 'x'")), context).status(),
            absl::InvalidArgumentError("sampling_params.stop needs the model's tokenizer in the router "
                                       "(--tokenizer): the router has no tokenizer"));
}

TYPED_TEST(GatewayRequest, BlocksAreNamedWhereRequestsGoToEnginesOfAnotherProtocol) {
  const auto request = this->With(absl::StrCat("tokenized { ", Times("input_ids: 4", 64), " }"));
  RequestContext context = PlainContext();
  EXPECT_EQ(ConvertTo<TypeParam>(request, context)->request.prefix, nullptr);
  context.limits.name_prefixes = true;
  const auto converted = ConvertTo<TypeParam>(request, context);
  ASSERT_TRUE(converted.ok() && converted->request.prefix != nullptr) << converted.status();
  EXPECT_EQ(*converted->request.prefix, *core::NamePrefixBlocks(converted->request.prompt));
}

// --- requests that pass ---

TYPED_TEST(GatewayRequest, OfARequestThatPassesOnlyWhatTheRouterNeedsIsRead) {
  auto sent = this->With("mm_inputs {} data_parallel_rank: 3 stream: true " + this->Logprobs(-1) +
                         Sampling("temperature: nan n: 2 regex: 'a'"));
  AddUnknown(sent);
  AddUnknown(*sent.mutable_sampling_params());
  const ConvertedRequest converted = this->Pass(sent);
  EXPECT_EQ(converted.outputs, 2u);
  EXPECT_TRUE(converted.stream);
  const ClientRequest& request = converted.request;
  EXPECT_EQ(std::tie(request.request_id, request.tenant, request.prompt_tokens, request.max_new_tokens,
                     request.rank, request.sampling.logprobs, request.priority_unset),
            std::tuple("chatcmpl-1", "acme", 3, 9, 3u, std::nullopt, true));
  EXPECT_TRUE(request.prompt.empty()) << "it is in the message";
  EXPECT_TRUE(request.passed.on);
  EXPECT_FALSE(request.passed.starts_again || request.passed.kv_from_elsewhere);
  const auto* const message =
      PassedMessage<typename TypeParam::GenerateRequest>::In(request.passed.message.get());
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->SerializeAsString(), sent.SerializeAsString());
  EXPECT_EQ(request.prompt_bytes(), static_cast<int64_t>(sent.ByteSizeLong()));
}

// Plain greedy requests continue on another engine. Blocks are named where the tokens alone decide which KV
// can be shared; fields that concern only the generated tokens do not change the names.
TYPED_TEST(GatewayRequest, FieldsMayPreventContinuationAndSharing) {
  struct Case {
    std::string change;
    bool continues, shares;
    bool kv_from_elsewhere = false;
  };
  std::vector<uint32_t> ids(130);
  for (uint32_t i = 0; i < ids.size(); ++i) ids[i] = i;
  auto plain = PlainOf<TypeParam>();
  plain.mutable_tokenized()->mutable_input_ids()->Assign(ids.begin(), ids.end());
  const char* const min_tokens = TestFixture::kVllm ? "min_tokens: 2" : "min_new_tokens: 2";
  const auto json = [](const char* text) { return absl::StrCat("kv_transfer_params_json: '", text, "'"); };
  for (const Case& one : this->template All<Case>(
           {{"", true, true},
            {this->Logprobs(3) + Sampling(absl::StrCat("stop_token_ids: 4 ", min_tokens)), true, true},
            {Sampling("temperature: 1 top_k: 1"), true, true},
            {Sampling("temperature: 1"), false, true},
            {Sampling("presence_penalty: 1"), false, true},
            {Sampling("frequency_penalty: -1"), false, true},
            {Sampling("repetition_penalty: 1.5"), false, true},
            {Sampling("json_schema: '{}'"), false, true},
            {Sampling("stop: 'end'"), false, true},
            {this->Logprobs(2) + Sampling("temperature: 1 regex: 'a' stop: 'end' n: 3"), false, true},
            {"mm_inputs {}", false, false}},
           {{Sampling("seed: 4"), true, true},
            {Sampling("json_object: true"), false, true},
            {Sampling("prompt_logprobs: 0"), false, false},
            {Sampling("truncate_prompt_tokens: 100"), false, false},
            {"extra_mm_inputs {}", false, false},
            {"media_refs {}", false, false},
            {Long("text", 600), false, false},
            {"kv_transfer_params {}", false, false, true},
            // Without it the request is a common one.
            {json(R"({"do_remote_prefill":true,"transfer_id":"r","a":[]})"), true, true},
            {json(R"({"do_remote_prefill":false,"do_remote_decode":true})"), false, false},
            {json("{}"), false, false},
            {json(""), false, false}},
           {{"return_logprob: true", true, true},
            {Sampling("custom_params {}"), false, true},
            {"lora_id: 'a'", false, false},
            {"return_hidden_states: true", false, false},
            {"input_embeds: 1", false, false},
            {"return_logprob: true logprob_start_len: 0", false, false},
            {"disaggregated_params {}", false, false, true}})) {
    SCOPED_TRACE(one.change);
    const ClientRequest request = this->Pass(FromText(one.change, plain)).request;
    EXPECT_EQ(request.passed.continues, one.continues);
    EXPECT_EQ(request.passed.kv_from_elsewhere, one.kv_from_elsewhere);
    EXPECT_EQ(request.passed.no_hand_off,
              absl::StrContains(one.change, "prompt_logprobs") ||
                  (absl::StrContains(one.change, "params_json") && request.hand_off == nullptr));
    RequestContext untrusted = PlainContext(/*passes=*/true);
    untrusted.kv_transfer = RequestContext::KvTransfer::kRefused;
    EXPECT_EQ(ConvertTo<TypeParam>(FromText(one.change, plain), untrusted).ok(),
              !absl::StrContains(one.change, "transfer") && !one.kv_from_elsewhere);
    ASSERT_EQ(request.prefix != nullptr, one.shares);
    if (one.shares) {
      EXPECT_EQ(*request.prefix, *core::NamePrefixBlocks(ids));
    }
  }
  auto unknown = plain, params = plain, sampled = plain;
  AddUnknown(unknown);
  EXPECT_FALSE(this->Pass(unknown).request.passed.continues);
  EXPECT_EQ(this->Pass(unknown).request.prefix, nullptr);
  // Without a stream one that cannot continue can start again.
  for (auto* const sent : {&plain, &unknown}) {
    sent->set_stream(false);
    const auto whole = ConvertTo<TypeParam>(*sent, PlainContext(/*passes=*/true));
    EXPECT_EQ(whole->request.passed.starts_again, sent == &unknown);
  }
  AddUnknown(*params.mutable_sampling_params());
  EXPECT_FALSE(this->Pass(params).request.passed.continues);
  sampled.mutable_sampling_params()->clear_temperature();
  EXPECT_EQ(this->Pass(sampled).request.passed.continues, !TestFixture::kVllm) << "it is 1 then";
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

// --- one protocol ---

// vLLM would wait for KV that nothing names, and end with its caller; it may read what is not read here.
TEST_F(VllmRequest, KvThatNoIdNamesIsRefused) {
  for (const char* const json :
       {R"({"do_remote_prefill":true})", R"({"do_remote_prefill":true,"remote_request_id":null})",
        R"({"do_remote_prefill":"true","transfer_id":"t"})",
        R"({"do_remote_prefill":1,"remote_request_id":"r"})",
        R"({"do_remote_prefill":true,"remote_request_id":"r","x":NaN})", "{", "[]",
        R"({"do_remote_prefill":true,"remote_request_id":"r","remote_engine_id":7})",
        R"({"do_remote_prefill":true,"remote_request_id":"r","remote_port":65536})",
        R"({"do_remote_prefill":true,"remote_request_id":"r","remote_block_ids":[[1,-1]]})",
        R"({"do_remote_prefill":true,"remote_request_id":"r","remote_block_ids":{"a":1}})"}) {
    auto request = PlainOf<Vllm>();
    request.set_kv_transfer_params_json(json);
    ExpectRefused(request, "kv_transfer_params_json", /*passes=*/true);
  }
}

TEST_F(VllmRequest, AHandOffIsTakenOutOfTheRequest) {
  auto request = PlainOf<Vllm>();
  const std::string json =
      R"({"do_remote_prefill":true,"remote_block_ids":[[1,2]],"remote_engine_id":"p_dp1","remote_request_id":"r","remote_host":"h","remote_port":5600})";
  request.set_kv_transfer_params_json(json);
  RequestContext context = PlainContext(/*passes=*/true);
  for (const auto from : {RequestContext::KvTransfer::kUnknown, RequestContext::KvTransfer::kTrusted}) {
    context.kv_transfer = from;
    const auto converted = ConvertTo<Vllm>(request, context);
    ASSERT_TRUE(converted.ok()) << converted.status();
    const HandOffPtr& hand_off = converted->request.hand_off;
    ASSERT_NE(hand_off, nullptr);
    EXPECT_EQ(hand_off->parameters, json);
    EXPECT_EQ(hand_off->engine, "p_dp1");
    EXPECT_EQ(hand_off->name, "r");
    EXPECT_EQ(hand_off->trusted, from == RequestContext::KvTransfer::kTrusted);
    EXPECT_EQ(OutputOf(converted->request, 1).hand_off, nullptr);
    const auto* const passed =
        PassedMessage<Vllm::GenerateRequest>::In(converted->request.passed.message.get());
    EXPECT_FALSE(passed->has_kv_transfer_params_json());
  }
  context.kv_transfer = RequestContext::KvTransfer::kRefused;
  EXPECT_EQ(ConvertTo<Vllm>(request, context).status().message(),
            "kv_transfer_params_json: the caller's entry in --client_tokens does not have trust_kv_transfer");
}

// With -1 as a seed, all outputs after the first would be the same in every call: their seeds are 0, 1, ...
TEST_F(VllmRequest, ASeedHas32BitsAndMinusOneMeansNone) {
  for (const bool passes : {false, true}) {
    const auto seed = [&](const char* sent) {
      return ConvertTo<Vllm>(With(Sampling(sent)), PlainContext(passes))->request.sampling.seed;
    };
    EXPECT_EQ(seed("seed: -2"), 0xfffffffeu);
    EXPECT_EQ(seed("seed: -1"), std::nullopt);
  }
}

TEST_F(VllmRequest, ATextMayPass) {
  auto text = With("text: 'some text'");
  text.mutable_sampling_params()->clear_max_tokens();
  const ClientRequest request = Pass(text).request;
  EXPECT_EQ(std::tie(request.prompt_tokens, request.max_new_tokens, request.max_new_tokens_unset),
            std::tuple(3, 997, true));
  ExpectRefused(With(Long("text", 1 << 20)), "the number of prompt tokens", /*passes=*/true);
}

TEST_F(SglangRequest, FieldsWithoutEffectAreAccepted) {
  const auto converted = ConvertTo<Sglang>(
      With("timestamp { seconds: 5 } log_metrics: true require_reasoning: true logprob_start_len: 3 " +
           Sampling("no_stop_trim: true stream_interval: 1")));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->request.sampling.top_k, std::nullopt) << "-1 is all tokens";
}

}  // namespace
}  // namespace bfio::router::gateway
