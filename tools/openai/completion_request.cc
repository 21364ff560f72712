#include "tools/openai/completion_request.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/openai/byte_text.h"

namespace bfio::openai {
namespace {

using nlohmann::json;

// Of GenerateRequest.priority.
constexpr int32_t kMostUrgent = 100;

absl::Status Wrong(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

// No value of the client's is ever copied: nlohmann's copy recurses, and a body may contain a million
// levels.

// The fields of one object. A field that is null is one that is not there, as OpenAI has it. The first thing
// that is wrong is kept in `status`; what is read after that means nothing.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  const json* Find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool Bool(const char* name) {
    const json* value = Find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) Fail(name, "must be true or false");
    return value->is_boolean() && value->get<bool>();
  }
  template <typename Int>
  std::optional<Int> Integer(const char* name) {
    const json* value = Find(name);
    if (value == nullptr) return std::nullopt;
    const std::optional<uint64_t> number = Unsigned(*value);
    if (!number.has_value() || *number > std::numeric_limits<Int>::max()) {
      Fail(name, absl::StrCat("must be an integer within 0..", std::numeric_limits<Int>::max()));
      return std::nullopt;
    }
    return static_cast<Int>(*number);
  }
  // Of either sign, at most `bound` away from 0.
  std::optional<int32_t> Signed(const char* name, int32_t bound) {
    const json* value = Find(name);
    if (value == nullptr) return std::nullopt;
    // What is above int64's range is unsigned to nlohmann.
    const bool small = value->is_number_unsigned()
                           ? value->get<uint64_t>() <= static_cast<uint64_t>(bound)
                           : value->is_number_integer() && value->get<int64_t>() >= -bound;
    if (!small) Fail(name, absl::StrCat("must be an integer within -", bound, "..", bound));
    return small ? std::optional<int32_t>(value->get<int32_t>()) : std::nullopt;
  }
  std::optional<double> Number(const char* name) {
    const json* value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) Fail(name, "must be a number");
    return value->is_number() ? std::optional<double>(value->get<double>()) : std::nullopt;
  }
  static std::optional<uint64_t> Unsigned(const json& value) {
    if (value.is_number_unsigned()) return value.get<uint64_t>();
    return std::nullopt;
  }
  // Refuses `name` unless it is absent or one of the values that change nothing.
  void OnlyTrivial(const char* name, std::initializer_list<json> trivial) {
    const json* value = Find(name);
    if (value == nullptr) return;
    for (const json& each : trivial) {
      if (*value == each) return;
    }
    Fail(name, "is not supported");
  }
  void Fail(absl::string_view field, absl::string_view what) {
    if (status.ok()) status = Wrong(field, what);
  }

  absl::Status status;

 private:
  const json& object_;
};

bool IsIds(const json& value) {
  return value.is_array() && !value.empty() && value[0].is_number();
}

absl::Status AppendIds(const json& list, absl::string_view field, std::vector<uint32_t>& ids) {
  ids.reserve(ids.size() + list.size());
  for (const json& each : list) {
    const std::optional<uint64_t> id = Fields::Unsigned(each);
    if (!id.has_value() || *id > std::numeric_limits<uint32_t>::max()) {
      return Wrong(field, "token ids must be integers within 0..4294967295");
    }
    ids.push_back(static_cast<uint32_t>(*id));
  }
  return absl::OkStatus();
}

absl::Status ReadPrompt(const Fields& fields, uint32_t offset, std::vector<uint32_t>& ids) {
  const json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return Wrong("prompt", "is missing");
  // A list of prompts may be a list of one.
  if (prompt->is_array() && prompt->size() == 1 && !IsIds(*prompt)) prompt = &(*prompt)[0];
  if (IsIds(*prompt)) return AppendIds(*prompt, "prompt", ids);
  if (prompt->is_array() && prompt->size() > 1)
    return Wrong("prompt", "must be one prompt, not a list of them");
  if (!prompt->is_string()) return Wrong("prompt", "must be a string or a list of token ids");
  AppendBytes(prompt->get_ref<const std::string&>(), offset, ids);
  return absl::OkStatus();
}

// The text of a message: a string, or parts of which each is text.
absl::Status AppendContent(const json& content, std::string& text) {
  if (content.is_string()) {
    text += content.get_ref<const std::string&>();
    return absl::OkStatus();
  }
  if (!content.is_array()) return Wrong("messages", "content must be a string or a list of text parts");
  for (const json& part : content) {
    const Fields fields(part);
    const json* type = part.is_object() ? fields.Find("type") : nullptr;
    const json* piece = part.is_object() ? fields.Find("text") : nullptr;
    if (type == nullptr || *type != "text" || piece == nullptr || !piece->is_string()) {
      return Wrong("messages", "content parts must be of type text");
    }
    text += piece->get_ref<const std::string&>();
  }
  return absl::OkStatus();
}

// "role: content\n" for each message, and "assistant: " for the answer.
absl::Status ReadMessages(const Fields& fields, uint32_t offset, std::vector<uint32_t>& ids) {
  const json* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return Wrong("messages", "must be a list of at least one message");
  }
  std::string text;
  for (const json& message : *messages) {
    const json* role = message.is_object() ? Fields(message).Find("role") : nullptr;
    if (role == nullptr || !role->is_string()) return Wrong("messages", "each must have a role");
    absl::StrAppend(&text, role->get_ref<const std::string&>(), ": ");
    const auto content = message.find("content");
    if (content != message.end() && !content->is_null()) {
      if (absl::Status status = AppendContent(*content, text); !status.ok()) return status;
    }
    text += "\n";
  }
  text += "assistant: ";
  AppendBytes(text, offset, ids);
  return absl::OkStatus();
}

// Strings end a generation only where they are one token.
void ReadStop(Fields& fields, uint32_t offset, v1::GenerateRequest& request) {
  const json* stop = fields.Find("stop");
  if (stop != nullptr) {
    const auto list = stop->is_array() ? absl::MakeConstSpan(stop->get_ref<const json::array_t&>())
                                       : absl::MakeConstSpan(stop, 1);
    for (const json& each : list) {
      if (!each.is_string() || each.get_ref<const std::string&>().size() != 1) {
        return fields.Fail("stop", "must be strings of one byte; others: stop_token_ids");
      }
      request.add_stop_token_ids(offset + static_cast<unsigned char>(each.get_ref<const std::string&>()[0]));
    }
  }
  const json* ids = fields.Find("stop_token_ids");
  if (ids == nullptr) return;
  if (!ids->is_array()) return fields.Fail("stop_token_ids", "must be a list of token ids");
  std::vector<uint32_t> stop_ids;
  if (absl::Status status = AppendIds(*ids, "stop_token_ids", stop_ids); !status.ok()) {
    fields.status.Update(status);
  }
  request.mutable_stop_token_ids()->Add(stop_ids.begin(), stop_ids.end());
}

void ReadLength(Fields& fields, const ParseOptions& options, v1::GenerateRequest& request) {
  std::optional<uint32_t> limit = fields.Integer<uint32_t>("max_completion_tokens");
  if (!limit.has_value()) limit = fields.Integer<uint32_t>("max_tokens");
  request.set_max_new_tokens(limit.value_or(options.default_max_tokens));
  request.set_ignore_eos(fields.Bool("ignore_eos"));
  const uint32_t at_least = fields.Integer<uint32_t>("min_tokens").value_or(0);
  if (at_least > 0 && !request.ignore_eos()) {
    // The one case that can be kept: exactly that many.
    if (at_least != request.max_new_tokens()) fields.Fail("min_tokens", "must equal max_tokens");
    request.set_ignore_eos(true);
  }
}

void ReadSampling(Fields& fields, v1::GenerateRequest& request) {
  v1::SamplingParams& sampling = *request.mutable_sampling();
  if (const auto value = fields.Number("temperature")) sampling.set_temperature(static_cast<float>(*value));
  if (const auto value = fields.Number("top_p")) sampling.set_top_p(static_cast<float>(*value));
  const json* top_k = fields.Find("top_k");
  // vLLM's words for all of them.
  if (top_k != nullptr && *top_k != -1 && *top_k != 0) {
    if (const auto value = fields.Integer<uint32_t>("top_k")) sampling.set_top_k(*value);
  }
  if (const auto value = fields.Integer<uint64_t>("seed")) sampling.set_seed(*value);
}

// Further fields of the router's API, under their own names.
void ReadPlace(Fields& fields, v1::GenerateRequest& request) {
  // vLLM's word, whose smaller numbers are the more urgent ones.
  if (const auto value = fields.Signed("priority", kMostUrgent)) request.set_priority(-*value);
  if (const auto value = fields.Integer<uint32_t>("predicted_output_tokens")) {
    request.set_predicted_output_tokens(*value);
  }
  if (const json* parent = fields.Find("parent_id")) {
    if (!parent->is_string()) return fields.Fail("parent_id", "must be a string");
    request.set_parent_id(parent->get_ref<const std::string&>());
  }
  if (const auto value = fields.Integer<uint32_t>("stage")) request.set_stage(*value);
  if (const auto value = fields.Integer<uint32_t>("remaining_tokens")) request.set_remaining_tokens(*value);
}

void RefuseWhatIsNotThere(Fields& fields) {
  fields.OnlyTrivial("n", {1});
  fields.OnlyTrivial("best_of", {1});
  fields.OnlyTrivial("echo", {false});
  fields.OnlyTrivial("suffix", {""});
  fields.OnlyTrivial("logprobs", {false});
  fields.OnlyTrivial("top_logprobs", {0});
  fields.OnlyTrivial("logit_bias", {json::object()});
  fields.OnlyTrivial("presence_penalty", {0});
  fields.OnlyTrivial("frequency_penalty", {0});
  fields.OnlyTrivial("repetition_penalty", {1});
  fields.OnlyTrivial("tools", {json::array()});
  fields.OnlyTrivial("tool_choice", {"none"});
  fields.OnlyTrivial("functions", {json::array()});
  fields.OnlyTrivial("function_call", {"none"});
  fields.OnlyTrivial("response_format", {json{{"type", "text"}}});
  fields.OnlyTrivial("use_beam_search", {false});
  fields.OnlyTrivial("min_p", {0});
  fields.OnlyTrivial("bad_words", {json::array()});
  // What the output would have to keep to, or bring along.
  for (const char* const name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
                                 "structured_outputs", "allowed_token_ids", "prompt_logprobs"}) {
    fields.OnlyTrivial(name, {});
  }
}

}  // namespace

absl::StatusOr<CompletionRequest> ParseCompletionRequest(Api api, absl::string_view body,
                                                         const ParseOptions& options) {
  const json object = json::parse(body.begin(), body.end(), nullptr, false);
  if (object.is_discarded()) return absl::InvalidArgumentError("the body is not JSON");
  if (!object.is_object()) return absl::InvalidArgumentError("the body must be a JSON object");
  Fields fields(object);
  if (const json* model = fields.Find("model"); model != nullptr && *model != options.model) {
    if (!model->is_string()) return Wrong("model", "must be a string");
    return absl::NotFoundError(absl::StrCat("the model is ", options.model));
  }
  RefuseWhatIsNotThere(fields);
  CompletionRequest request;
  std::vector<uint32_t> ids;
  fields.status.Update(api == Api::kChat ? ReadMessages(fields, options.byte_offset, ids)
                                         : ReadPrompt(fields, options.byte_offset, ids));
  request.generate.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  ReadLength(fields, options, request.generate);
  ReadStop(fields, options.byte_offset, request.generate);
  if (fields.Find("min_tokens") != nullptr && *fields.Find("min_tokens") != 0 &&
      !request.generate.stop_token_ids().empty()) {
    fields.Fail("min_tokens", "cannot be kept beside stop or stop_token_ids");
  }
  ReadSampling(fields, request.generate);
  ReadPlace(fields, request.generate);
  request.stream = fields.Bool("stream");
  request.return_token_ids = fields.Bool("return_token_ids");
  if (!fields.Bool("include_stop_str_in_output")) {
    const auto& stops = request.generate.stop_token_ids();
    request.unsaid_stop_ids.assign(stops.begin(), stops.end());
  }
  if (const json* stream_options = fields.Find("stream_options")) {
    if (!stream_options->is_object()) return Wrong("stream_options", "must be an object");
    Fields inner(*stream_options);
    request.include_usage = inner.Bool("include_usage");
    fields.status.Update(inner.status);
  }
  if (!fields.status.ok()) return fields.status;
  return request;
}

}  // namespace bfio::openai
