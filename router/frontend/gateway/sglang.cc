// SGLang's scheduler API (sglang.grpc.scheduler.SglangScheduler) for gateways.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/out_of_range.h"
#include "common/base/status_macros.h"
#include "engines/sglang.pb.h"
#include "router/frontend/gateway/protocol.h"

namespace bfio::router::gateway {
namespace sglang {
namespace {

namespace pb = ::sglang::grpc::scheduler;

// What a prompt may have beside its tokens.
constexpr absl::string_view kBesideTokens[] = {
    "mm_inputs", "input_embeds", "return_hidden_states", "disaggregated_params", "custom_logit_processor",
    "lora_id"};
constexpr absl::string_view kUnsupportedSampling[] = {"min_new_tokens", "custom_params"};

absl::Status CheckSampling(const pb::SamplingParams& sampling) {
  BFIO_RETURN_IF_ERROR(gateway::CheckSampling(sampling, kUnsupportedSampling));
  // Only an interval of 1 is supported: tokens are sent as they arrive.
  if (sampling.has_stream_interval() && sampling.stream_interval() != 1)
    return NotSupported("sampling_params.stream_interval");
  // -1: all tokens.
  if (sampling.top_k() < -1)
    return OutOfRange("sampling_params.top_k", sampling.top_k(), "-1 (all tokens), 0 (not set) or above");
  return absl::OkStatus();
}

// CheckRequest bounds top_logprobs_num from above. logprob_start_len has a meaning only beside
// return_logprob.
absl::Status CheckLogprobs(const pb::GenerateRequest& request) {
  if (request.token_ids_logprob_size() > 0) return NotSupported("token_ids_logprob");
  if (!request.return_logprob()) {
    return request.top_logprobs_num() == 0 ? absl::OkStatus()
                                           : NotSupported("top_logprobs_num without return_logprob");
  }
  if (request.top_logprobs_num() < 0)
    return OutOfRange("top_logprobs_num", request.top_logprobs_num(), "at least 0");
  // Engines compute log-probabilities of generated tokens only.
  if (request.logprob_start_len() >= 0)
    return OutOfRange("logprob_start_len", request.logprob_start_len(),
                      "-1 (no log-probabilities of the prompt)");
  return absl::OkStatus();
}

absl::Status CheckUnsupported(const pb::GenerateRequest& request) {
  if (const auto field = FieldSetIn(request, kBesideTokens); !field.empty()) return NotSupported(field);
  BFIO_RETURN_IF_ERROR(CheckLogprobs(request));
  return CheckSampling(request.sampling_params());
}

// proto3's 0 is "not set" for top_p and top_k, and a temperature of 0 is greedy.
Sampling ToSampling(const pb::GenerateRequest& request) {
  const pb::SamplingParams& from = request.sampling_params();
  Sampling sampling;
  sampling.temperature = from.temperature();
  if (from.top_p() != 0) sampling.top_p = from.top_p();
  if (from.top_k() > 0) sampling.top_k = static_cast<uint32_t>(from.top_k());
  if (request.return_logprob()) sampling.logprobs = static_cast<uint32_t>(request.top_logprobs_num());
  return sampling;
}

// Unknown fields may contain anything.
bool OnlyTokens(const pb::GenerateRequest& from) {
  return FieldSetIn(from, kBesideTokens).empty() && CheckAllKnown(from).ok();
}

// Whether another engine can continue the output: the next tokens depend only on the prompt and the tokens so
// far. With `may_resample`, it is also acceptable that another engine samples them and penalizes only its own
// tokens.
bool Continues(const pb::GenerateRequest& from, bool may_resample) {
  const pb::SamplingParams& sampling = from.sampling_params();
  const bool greedy = sampling.temperature() == 0 || sampling.top_k() == 1;
  const bool penalties = sampling.frequency_penalty() != 0 || sampling.presence_penalty() != 0 ||
                         (sampling.repetition_penalty() != 0 && sampling.repetition_penalty() != 1);
  // A stop text may begin in tokens of the first engine and end in tokens of another one.
  const bool plain = sampling.constraint_case() == pb::SamplingParams::CONSTRAINT_NOT_SET &&
                     sampling.stop().empty() && !sampling.has_custom_params() &&
                     from.token_ids_logprob().empty() &&
                     (!from.return_logprob() || from.logprob_start_len() < 0);
  return ((greedy && !penalties) || may_resample) && plain && OnlyTokens(from);
}

absl::StatusOr<ConvertedRequest> Pass(pb::GenerateRequest&& from, std::string tenant,
                                      const OutputLimit& limit, const RequestContext& context) {
  BFIO_RETURN_IF_ERROR(CheckKvTransfer(from, {"disaggregated_params"}, context));
  BFIO_ASSIGN_OR_RETURN(const uint32_t prompt, PromptTokens(from.tokenized().input_ids_size(), /*text=*/""));
  auto to = PassFields(from, std::move(tenant), limit, prompt, context);
  if (!to.ok()) return to;
  Passing& passed = to->request.passed;
  passed.continues = Continues(from, context.may_resample);
  passed.starts_again = !from.stream() && !passed.continues;
  passed.kv_from_elsewhere = from.has_disaggregated_params();
  // Unknown fields may contain a cache salt. For log-probabilities of the prompt, SGLang computes the prompt
  // from logprob_start_len on.
  const bool computes_all = from.return_logprob() && from.logprob_start_len() >= 0;
  const bool only_ids = OnlyTokens(from);
  if (only_ids) TakeIds(from.tokenized(), to->request);
  if (only_ids && !computes_all) to->request.prefix = PrefixOf(from.tokenized());
  passed.message = PassedMessage<pb::GenerateRequest>::Make(std::move(from));
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

class SglangGateway final : public ProtocolOf<Messages> {
 public:
  SglangGateway()
      : ProtocolOf(
            {.name = "sglang.grpc.scheduler.SglangScheduler", .chunks_count_all = true, .names_eos = true}) {}

  absl::StatusOr<ConvertedRequest> Convert(Message& request, std::string tenant,
                                           const RequestContext& context) const override {
    auto& from = static_cast<pb::GenerateRequest&>(request);
    const pb::SamplingParams& sampling = from.sampling_params();
    OutputLimit limit{.name = "sampling_params.max_new_tokens", .logprobs = "top_logprobs_num"};
    if (sampling.has_max_new_tokens()) limit.tokens = sampling.max_new_tokens();
    if (context.passes) return Pass(std::move(from), std::move(tenant), limit, context);
    BFIO_RETURN_IF_ERROR(CheckUnsupported(from));
    return ConvertFields(from, std::move(tenant), limit, ToSampling(from), context);
  }
  std::vector<std::string> AbortedIds(const Message& request) const override {
    return {static_cast<const pb::AbortRequest&>(request).request_id()};
  }
  MessagePtr Aborted(bool found) const override {
    auto out = std::make_unique<pb::AbortResponse>();
    out->set_success(found);
    out->set_message(found ? "aborted" : "no such request");
    return out;
  }
  // Gateways read the engine's sizes from its arguments.
  MessagePtr ServerInfo(const Loads& loads, absl::Duration uptime, const std::string&) const override {
    const RankLoad all = SumOf(loads);
    auto out = std::make_unique<pb::GetServerInfoResponse>();
    auto& args = *out->mutable_server_args()->mutable_fields();
    args["dp_size"].set_number_value(1);
    args["max_running_requests"].set_number_value(static_cast<double>(all.slots));
    out->set_active_requests(Clamped(all.running_requests + all.waiting_requests));
    out->set_uptime_seconds(absl::ToDoubleSeconds(uptime));
    out->set_sglang_version(loads.version);
    out->set_server_type("grpc");
    out->mutable_start_time()->set_seconds(absl::ToUnixSeconds(loads.timestamp - uptime));
    out->set_max_total_num_tokens(Clamped(all.max_tokens));
    return out;
  }

 private:
  void SumUp(pb::GetLoadsResponse& out) const override {
    pb::AggregateMetrics& all = *out.mutable_aggregate();
    for (const pb::SchedulerLoad& load : out.loads()) {
      all.set_total_running_reqs(all.total_running_reqs() + load.num_running_reqs());
      all.set_total_waiting_reqs(all.total_waiting_reqs() + load.num_waiting_reqs());
      all.set_total_reqs(all.total_reqs() + load.num_total_reqs());
      all.set_avg_token_usage(all.avg_token_usage() + load.token_usage() / out.loads_size());
      all.set_avg_throughput(all.avg_throughput() + load.gen_throughput() / out.loads_size());
      all.set_avg_utilization(all.avg_utilization() + load.utilization() / out.loads_size());
    }
  }
};

}  // namespace
}  // namespace sglang

const Protocol& SglangProtocol() {
  static const auto& protocol = *new sglang::SglangGateway;
  return protocol;
}

}  // namespace bfio::router::gateway
