#include "router/frontend/gateway/request_fields.h"

#include "absl/strings/str_replace.h"
#include "google/protobuf/unknown_field_set.h"

namespace bfio::router::gateway {

absl::string_view FieldSetIn(const google::protobuf::Message& message, FieldNames names) {
  const google::protobuf::Reflection& read = *message.GetReflection();
  for (const absl::string_view name : names) {
    const auto* const field = message.GetDescriptor()->FindFieldByName(std::string(name));
    if (field->is_repeated() ? read.FieldSize(message, field) > 0 : read.HasField(message, field))
      return name;
  }
  return "";
}

absl::Status CheckSampling(const google::protobuf::Message& sampling, FieldNames of_protocol) {
  static constexpr absl::string_view kOfAll[] = {"min_p", "frequency_penalty", "presence_penalty",
                                                 "logit_bias"};
  const google::protobuf::Reflection& read = *sampling.GetReflection();
  const google::protobuf::Descriptor& fields = *sampling.GetDescriptor();
  std::string name(FieldSetIn(sampling, kOfAll));
  if (name.empty()) name = std::string(FieldSetIn(sampling, of_protocol));
  const float repetition = read.GetFloat(sampling, fields.FindFieldByName("repetition_penalty"));
  if (repetition != 0 && repetition != 1) name = "repetition_penalty";
  const auto* const constraint = read.GetOneofFieldDescriptor(sampling, fields.FindOneofByName("constraint"));
  if (constraint != nullptr) name = constraint->name();
  return name.empty() ? absl::OkStatus() : NotSupported(absl::StrCat("sampling_params.", name));
}

absl::Status CheckNoUnknownFields(std::initializer_list<const google::protobuf::Message*> messages) {
  for (const google::protobuf::Message* message : messages) {
    const google::protobuf::UnknownFieldSet& unknown = message->GetReflection()->GetUnknownFields(*message);
    if (unknown.empty()) continue;
    return NotSupported(absl::StrCat("unknown field ", unknown.field(0).number(), " of ",
                                     std::string(message->GetDescriptor()->name())));
  }
  return absl::OkStatus();
}

absl::Status CheckKvTransfer(const google::protobuf::Message& request, FieldNames names,
                             const RequestContext& context) {
  if (context.kv_transfer != RequestContext::KvTransfer::kRefused) return absl::OkStatus();
  const absl::string_view name = FieldSetIn(request, names);
  if (name.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": the caller's entry in --client_tokens does not have trust_kv_transfer"));
}

absl::Status NotSupported(absl::string_view field) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is not supported by this engine"));
}

absl::Status CheckStops(absl::Span<const std::string> stops, const RequestContext& context) {
  if (stops.empty()) return absl::OkStatus();
  if (!context.no_stop_texts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling_params.stop needs the model's tokenizer in the router (--tokenizer): ",
                     context.no_stop_texts));
  }
  if (stops.size() > kMaxStops) {
    return OutOfRange("the number of sampling_params.stop strings", static_cast<int64_t>(stops.size()),
                      absl::StrCat("at most ", kMaxStops));
  }
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return OutOfRange("the length of a sampling_params.stop string", stop.size(),
                        absl::StrCat("within 1..", kMaxStopBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRank(std::optional<int32_t> rank) {
  if (!rank || *rank >= 0) return absl::OkStatus();
  return OutOfRange("data_parallel_rank", *rank, "at least 0, or unset");
}

absl::StatusOr<uint32_t> MaxNewTokens(const OutputLimit& limit, size_t prompt_tokens,
                                      const RequestContext& context) {
  if (limit.tokens) return *limit.tokens;
  if (context.max_sequence_tokens == 0) {
    return absl::UnavailableError(
        absl::StrCat(limit.name, " is not set, and its default is unknown until a worker has connected"));
  }
  const int64_t left = context.max_sequence_tokens - static_cast<int64_t>(prompt_tokens);
  // If the prompt leaves no space for output, the router refuses the request as too long.
  return static_cast<uint32_t>(std::clamp<int64_t>(left, 1, context.limits.max_new_tokens));
}

absl::Status InFieldsOfGateways(const absl::Status& status, const OutputLimit& limit) {
  return absl::Status(
      status.code(),
      absl::StrReplaceAll(status.message(), {{"max_new_tokens", limit.name},
                                             {"sampling.logprobs", limit.logprobs},
                                             {"sampling.", "sampling_params."},
                                             {"stop_token_ids", "sampling_params.stop_token_ids"},
                                             {"token_ids", "tokenized.input_ids"},
                                             {"prompt_length", "the number of prompt tokens"}}));
}

absl::StatusOr<uint32_t> PromptTokens(int64_t ids, absl::string_view text) {
  // Estimate for a text in a European language; the engine's count is known only from its answer.
  constexpr size_t kBytesPerToken = 4;
  if (ids > 0) return static_cast<uint32_t>(ids);
  if (!text.empty()) return static_cast<uint32_t>((text.size() + kBytesPerToken - 1) / kBytesPerToken);
  return absl::InvalidArgumentError("the prompt is missing: set tokenized.input_ids or a text");
}

}  // namespace bfio::router::gateway
