#include "router/frontend/endpoint_picker/openai_request.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_order_mark.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"

namespace bfio::router::picker {
namespace {

using Json = nlohmann::json;

// A prompt may be a list of token ids.
constexpr JsonLimits kLimits = {
    .bytes = kMaxBodyBytes, .values = size_t{1} << 20, .string_bytes = kMaxBodyBytes};
constexpr uint32_t kMostOutputs = 1024;
constexpr char kHandOff[] = "kv_transfer_params";

// Appends all texts of a value, in order. Names are left out, except for roles' values: two conversations
// that begin alike then have texts that begin alike.
void AppendTexts(const Json& value, std::string& text) {
  if (value.is_string()) {
    absl::StrAppend(&text, value.get_ref<const std::string&>(), "\n");
  } else if (value.is_structured()) {
    for (const Json& one : value) AppendTexts(one, text);
  }
}

bool AllIds(const Json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const Json& id) { return id.is_number_unsigned(); });
}

// The prompt as numbers, so that equal beginnings have equal numbers: its token ids, or its bytes by four.
std::vector<uint32_t> UnitsOf(const Json& prompt, const std::string& before) {
  std::vector<uint32_t> units;
  if (AllIds(prompt)) {
    for (const Json& id : prompt) units.push_back(static_cast<uint32_t>(id.get<uint64_t>()));
    return units;
  }
  std::string text = before;
  AppendTexts(prompt, text);
  units.resize((text.size() + kBytesPerToken - 1) / kBytesPerToken, 0);
  if (!text.empty()) std::memcpy(units.data(), text.data(), text.size());
  return units;
}

bool IsSet(const Json& request, const char* name) {
  const auto found = request.find(name);
  return found != request.end() && !found->is_null() && *found != false;
}

absl::Status OwnHandOff() {
  return absl::InvalidArgumentError("kv_transfer_params of a client: only the router hands prompts over");
}

std::optional<uint32_t> CountIn(const Json& request, const char* name) {
  const auto found = request.find(name);
  if (found == request.end() || !found->is_number_unsigned()) return std::nullopt;
  return static_cast<uint32_t>(
      std::min<uint64_t>(found->get<uint64_t>(), std::numeric_limits<uint32_t>::max()));
}

}  // namespace

bool Generates(absl::string_view path) {
  path = path.substr(0, path.find('?'));
  return absl::EndsWith(path, "/completions") || absl::EndsWith(path, "/responses");
}

absl::Status CheckNoHandOff(absl::string_view body) {
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(WithoutByteOrderMark(body));
  if (!absl::StartsWith(text, "{")) return absl::OkStatus();
  BFIO_ASSIGN_OR_RETURN(const Json json, ReadJsonObject(body, "", kLimits, {kHandOff}));
  return IsSet(json, kHandOff) ? OwnHandOff() : absl::OkStatus();
}

absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(absl::string_view body) {
  BFIO_ASSIGN_OR_RETURN(
      const Json json,
      ReadJsonObject(body, "", kLimits,
                     {"model", "prompt", "messages", "input", "instructions", "tools", "max_tokens",
                      "max_completion_tokens", "max_output_tokens", "n", "best_of", kHandOff, "echo",
                      "prompt_logprobs", "truncate_prompt_tokens", "use_beam_search"}));
  if (IsSet(json, kHandOff)) return OwnHandOff();
  OpenAiRequest request;
  if (const auto model = json.find("model"); model != json.end() && model->is_string())
    request.model = model->get<std::string>();
  for (const char* name : {"max_completion_tokens", "max_output_tokens", "max_tokens"}) {
    if (!request.max_tokens) request.max_tokens = CountIn(json, name);
  }
  request.outputs = std::clamp(std::max(CountIn(json, "n").value_or(1), CountIn(json, "best_of").value_or(1)),
                               uint32_t{1}, kMostOutputs);
  // In the order in which chat templates put them before the conversation.
  std::string before;
  for (const char* name : {"tools", "instructions"}) {
    if (const auto part = json.find(name); part != json.end()) AppendTexts(*part, before);
  }
  // Where it is cut depends on max_tokens.
  bool plain = request.outputs == 1;
  for (const char* name : {"echo", "prompt_logprobs", "truncate_prompt_tokens", "use_beam_search"})
    plain = plain && !IsSet(json, name);
  const auto messages = json.find("messages"), prompt = json.find("prompt");
  request.one_prompt = plain && ((messages != json.end() && messages->is_array()) ||
                                 (prompt != json.end() && (prompt->is_string() || AllIds(*prompt))));
  std::vector<uint32_t> units;
  for (const char* name : {"messages", "prompt", "input"}) {
    if (const auto found = json.find(name); found != json.end() && units.empty())
      units = UnitsOf(*found, before);
  }
  request.prompt_tokens = static_cast<uint32_t>(std::max<size_t>(1, units.size()));
  request.prefix = core::NamePrefixBlocks(units);
  return request;
}

}  // namespace bfio::router::picker
