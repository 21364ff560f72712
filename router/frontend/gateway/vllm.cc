// vLLM's engine API (vllm.grpc.engine.VllmEngine) for gateways.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/out_of_range.h"
#include "common/base/status_macros.h"
#include "engines/vllm.pb.h"
#include "router/frontend/gateway/protocol.h"
#include "router/requests/kv_transfer.h"

namespace bfio::router::gateway {
namespace vllm {
namespace {

namespace pb = ::vllm::grpc::engine;

// The hand-off that the gateway has had made; null: none. A prompt with "do_remote_decode" is computed here
// for another engine. What this reader cannot read, vLLM's might.
absl::StatusOr<HandOffPtr> HandOffOf(const pb::GenerateRequest& request, uint32_t prompt_tokens,
                                     bool trusted) {
  const std::string& text = request.kv_transfer_params_json();
  if (text.empty()) return nullptr;
  const auto wrong = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("kv_transfer_params_json: ", what));
  };
  auto transfer = ReadKvTransfer(text, prompt_tokens + kKvTokensAhead);
  if (!transfer.ok()) return wrong(transfer.status().message());
  if (!transfer->fetches) return nullptr;
  if (text.size() > kHandOffBytes + kHandOffBytesPerToken * prompt_tokens)
    return wrong("it is larger than the prompt's blocks");
  auto hand_off = std::make_shared<RequestHandOff>();
  hand_off->parameters = text;
  hand_off->engine = std::move(transfer->engine);
  hand_off->name = std::move(transfer->name);
  hand_off->trusted = trusted;
  return hand_off;
}

// What a prompt may have beside its tokens.
constexpr absl::string_view kBesideTokens[] = {"mm_inputs", "extra_mm_inputs", "media_refs",
                                               "kv_transfer_params", "kv_transfer_params_json"};
constexpr absl::string_view kUnsupportedSampling[] = {"min_tokens", "prompt_logprobs",
                                                      "truncate_prompt_tokens", "grammar_from_first_token"};

absl::Status CheckUnsupported(const pb::GenerateRequest& request) {
  if (request.input_case() == pb::GenerateRequest::kText)
    return NotSupported("text (a prompt that is not tokenized)");
  if (const auto field = FieldSetIn(request, kBesideTokens); !field.empty()) return NotSupported(field);
  return CheckSampling(request.sampling_params(), kUnsupportedSampling);
}

// CheckRequest checks the upper bound.
absl::Status CheckLogprobs(const pb::SamplingParams& sampling) {
  if (!sampling.has_logprobs() || sampling.logprobs() >= 0) return absl::OkStatus();
  return OutOfRange("sampling_params.logprobs", sampling.logprobs(), "at least 0, or unset");
}

// In vLLM, -1 means no seed. Used as a seed, it would make all outputs but the first the same in every call.
std::optional<uint64_t> SeedOf(const pb::SamplingParams& from) {
  if (!from.has_seed() || from.seed() == -1) return std::nullopt;
  return static_cast<uint32_t>(from.seed());
}

Sampling ToSampling(const pb::SamplingParams& from) {
  Sampling sampling;
  sampling.temperature = from.has_temperature() ? from.temperature() : 1.0f;
  if (from.top_p() != 0) sampling.top_p = from.top_p();
  if (from.top_k() != 0) sampling.top_k = from.top_k();
  sampling.seed = SeedOf(from);
  if (from.has_logprobs()) sampling.logprobs = static_cast<uint32_t>(from.logprobs());
  return sampling;
}

bool OnlyTokens(const pb::GenerateRequest& from) {
  return from.has_tokenized() && FieldSetIn(from, kBesideTokens).empty() && CheckAllKnown(from).ok();
}

// Unknown fields may contain a cache salt or an adapter. For log-probabilities of the prompt, vLLM computes
// the whole prompt.
bool SharesPrefixes(const pb::GenerateRequest& from) {
  const pb::SamplingParams& sampling = from.sampling_params();
  return OnlyTokens(from) && !sampling.has_prompt_logprobs() && !sampling.has_truncate_prompt_tokens();
}

// Whether another engine can continue the output: the next tokens depend only on the prompt and the tokens so
// far. With `may_resample`, it is also acceptable that another engine samples them and penalizes only its own
// tokens.
bool Continues(const pb::GenerateRequest& from, bool may_resample) {
  const pb::SamplingParams& sampling = from.sampling_params();
  const bool greedy = (sampling.has_temperature() && sampling.temperature() == 0) || sampling.top_k() == 1;
  const bool penalties = sampling.frequency_penalty() != 0 || sampling.presence_penalty() != 0 ||
                         (sampling.repetition_penalty() != 0 && sampling.repetition_penalty() != 1);
  // A stop text may begin in tokens of the first engine and end in tokens of another one.
  const bool plain = sampling.constraint_case() == pb::SamplingParams::CONSTRAINT_NOT_SET &&
                     sampling.stop().empty() && !sampling.has_prompt_logprobs() &&
                     !sampling.has_truncate_prompt_tokens();
  return ((greedy && !penalties) || may_resample) && plain && OnlyTokens(from);
}

absl::StatusOr<ConvertedRequest> Pass(pb::GenerateRequest&& from, std::string tenant,
                                      const OutputLimit& limit, const RequestContext& context) {
  BFIO_RETURN_IF_ERROR(CheckKvTransfer(from, {"kv_transfer_params", "kv_transfer_params_json"}, context));
  const pb::SamplingParams& sampling = from.sampling_params();
  BFIO_ASSIGN_OR_RETURN(uint32_t prompt, PromptTokens(from.tokenized().input_ids_size(), from.text()));
  if (sampling.has_truncate_prompt_tokens() && sampling.truncate_prompt_tokens() > 0)
    prompt = std::min(prompt, static_cast<uint32_t>(sampling.truncate_prompt_tokens()));
  auto to = PassFields(from, std::move(tenant), limit, prompt, context);
  if (!to.ok()) return to;
  ClientRequest& request = to->request;
  // The router sends it with the request once; without it the request is a common one.
  BFIO_ASSIGN_OR_RETURN(request.hand_off,
                        HandOffOf(from, prompt, context.kv_transfer == RequestContext::KvTransfer::kTrusted));
  if (request.hand_off != nullptr) from.clear_kv_transfer_params_json();
  request.sampling.seed = SeedOf(sampling);
  request.passed.continues = Continues(from, context.may_resample);
  request.passed.starts_again = !from.stream() && !request.passed.continues;
  request.passed.kv_from_elsewhere = from.has_kv_transfer_params();
  // The answer has log-probabilities of the prompt, or hands its KV over.
  request.passed.no_hand_off = sampling.has_prompt_logprobs() || from.has_kv_transfer_params_json();
  if (SharesPrefixes(from)) {
    TakeIds(from.tokenized(), request);
    request.prefix = PrefixOf(from.tokenized());
  }
  request.passed.message = PassedMessage<pb::GenerateRequest>::Make(std::move(from));
  return to;
}

struct Messages {
  using GenerateRequest = pb::GenerateRequest;
  using GenerateResponse = pb::GenerateResponse;
  using AbortRequest = pb::AbortRequest;
  using HealthCheckResponse = pb::HealthCheckResponse;
  using GetModelInfoResponse = pb::GetModelInfoResponse;
  using GetLoadsRequest = pb::GetLoadsRequest;
  using GetLoadsResponse = pb::GetLoadsResponse;
};

class VllmGateway final : public ProtocolOf<Messages> {
 public:
  VllmGateway() : ProtocolOf({.name = "vllm.grpc.engine.VllmEngine"}) {}

  absl::StatusOr<ConvertedRequest> Convert(Message& request, std::string tenant,
                                           const RequestContext& context) const override {
    auto& from = static_cast<pb::GenerateRequest&>(request);
    const pb::SamplingParams& sampling = from.sampling_params();
    OutputLimit limit{.name = "sampling_params.max_tokens"};
    if (sampling.has_max_tokens()) limit.tokens = sampling.max_tokens();
    if (context.passes) return Pass(std::move(from), std::move(tenant), limit, context);
    BFIO_RETURN_IF_ERROR(CheckUnsupported(from));
    BFIO_RETURN_IF_ERROR(CheckLogprobs(sampling));
    return ConvertFields(from, std::move(tenant), limit, ToSampling(sampling), context);
  }
  std::vector<std::string> AbortedIds(const Message& request) const override {
    const auto& ids = static_cast<const pb::AbortRequest&>(request).request_ids();
    return {ids.begin(), ids.end()};
  }
  // The answer does not tell whether the request was found.
  MessagePtr Aborted(bool) const override { return std::make_unique<pb::AbortResponse>(); }
  MessagePtr ServerInfo(const Loads& loads, absl::Duration uptime, const std::string& dtype) const override {
    const RankLoad all = SumOf(loads);
    auto out = std::make_unique<pb::GetServerInfoResponse>();
    out->set_active_requests(static_cast<uint32_t>(Clamped(all.running_requests + all.waiting_requests)));
    out->set_uptime_seconds(absl::ToDoubleSeconds(uptime));
    out->set_server_type("vllm-grpc");
    out->set_data_parallel_size(1);
    if (!dtype.empty()) out->set_model_dtype("torch." + dtype);
    out->set_max_num_seqs(Clamped(all.slots));
    return out;
  }
};

}  // namespace
}  // namespace vllm

const Protocol& VllmProtocol() {
  static const auto& protocol = *new vllm::VllmGateway;
  return protocol;
}

}  // namespace bfio::router::gateway
