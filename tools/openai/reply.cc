#include "tools/openai/reply.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/status.h"

namespace bfio::openai {
namespace {

using nlohmann::json;

// Texts that others wrote may not be UTF-8.
std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string Event(const std::string& data) {
  return absl::StrCat("data: ", data, "\n\n");
}

int HttpStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

const char* ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

// "temperature: must be a number" names its field; the router's messages read "sampling.top_p is 7; ...".
json Param(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return nullptr;
  const absl::string_view message = status.message();
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.");
  if (end == absl::string_view::npos || (message[end] != ':' && message.substr(end, 4) != " is "))
    return nullptr;
  const absl::string_view name = message.substr(0, end);
  return std::string(name.substr(name.rfind('.') + 1));
}

json ErrorObject(int http_status, const std::string& message, json param, const std::string& code) {
  return {{"error",
           {{"message", message},
            {"type", ErrorType(http_status)},
            {"param", std::move(param)},
            {"code", code}}}};
}

json ErrorOf(const absl::Status& status) {
  return ErrorObject(HttpStatus(status.code()), std::string(status.message()), Param(status),
                     absl::StatusCodeToString(status.code()));
}

const char* ReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_ABORT:
      return "abort";
    default:
      return "stop";
  }
}

json UsageOf(const v1::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.completion_tokens()},
          {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()}};
}

}  // namespace

ErrorReply ToError(const absl::Status& status) {
  ErrorReply reply;
  const std::optional<absl::Duration> delay = GetRetryDelay(status);
  if (absl::IsResourceExhausted(status) && !delay.has_value() &&
      absl::StrContains(status.message(), "larger than max")) {
    // gRPC's words for a message beyond the router's bound: another try would be as large.
    reply.http_status = 413;
    reply.body = ErrorBody(413, "the prompt is larger than the router takes");
    return reply;
  }
  reply.http_status = HttpStatus(status.code());
  reply.body = Dump(ErrorOf(status));
  if (delay.has_value() || reply.http_status == 429 || reply.http_status == 503) {
    const absl::Duration whole = absl::Ceil(delay.value_or(absl::Seconds(1)), absl::Seconds(1));
    reply.retry_after_s = std::max<int64_t>(1, absl::ToInt64Seconds(whole));
  }
  return reply;
}

std::string ErrorBody(int http_status, const std::string& message) {
  return Dump(ErrorObject(http_status, message, nullptr, absl::StrCat(http_status)));
}

Reply::Reply(Api api, const CompletionRequest& request, std::string model, std::string id,
             uint32_t byte_offset, absl::Time created)
    : api_(api),
      stream_(request.stream),
      include_usage_(request.include_usage),
      return_token_ids_(request.return_token_ids),
      model_(std::move(model)),
      id_(absl::StrCat(api == Api::kChat ? "chatcmpl-" : "cmpl-", id)),
      created_(absl::ToUnixSeconds(created)),
      unsaid_stop_ids_(request.unsaid_stop_ids),
      decoder_(byte_offset) {}

absl::Span<const uint32_t> Reply::Said(absl::Span<const uint32_t> ids) const {
  const bool ended = !ids.empty() && absl::c_linear_search(unsaid_stop_ids_, ids.back());
  return ended ? ids.subspan(0, ids.size() - 1) : ids;
}

std::string Reply::Chunk(const std::string& text, absl::Span<const uint32_t> ids, const char* finish_reason) {
  json choice = {{"index", 0}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (finish_reason != nullptr) choice["finish_reason"] = finish_reason;
  if (return_token_ids_) choice["token_ids"] = std::vector<uint32_t>(ids.begin(), ids.end());
  const char* object = "text_completion";
  if (api_ == Api::kChat) {
    object = stream_ ? "chat.completion.chunk" : "chat.completion";
    json& message = choice[stream_ ? "delta" : "message"];
    message = json::object();
    // With the first text, not before it: so that the time to the first chunk is the time to the first token.
    if (!role_told_) message["role"] = "assistant";
    role_told_ = true;
    if (!stream_ || !text.empty()) message["content"] = text;
  } else {
    choice["text"] = text;
  }
  json chunk = {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
  chunk["choices"] = json::array({std::move(choice)});
  if (stream_ && include_usage_) chunk["usage"] = nullptr;
  if (stream_) return Event(Dump(chunk));
  return Dump(chunk);
}

std::string Reply::TokensEvent(absl::Span<const uint32_t> ids) {
  const std::string text = decoder_.Decode(Said(ids));
  if (text.empty() && !return_token_ids_) return "";
  return Chunk(text, ids, nullptr);
}

std::string Reply::FinishEvents(const v1::Finish& finish) {
  std::string events = Chunk(decoder_.Finish(), {}, ReasonName(finish.reason()));
  if (include_usage_) {
    json chunk = {{"id", id_}, {"created", created_}, {"model", model_}, {"choices", json::array()}};
    chunk["object"] = api_ == Api::kChat ? "chat.completion.chunk" : "text_completion";
    chunk["usage"] = UsageOf(finish.usage());
    events += Event(Dump(chunk));
  }
  return events + Event("[DONE]");
}

std::string Reply::ErrorEvent(const absl::Status& status) {
  return Event(Dump(ErrorOf(status)));
}

void Reply::Add(absl::Span<const uint32_t> ids) {
  text_ += decoder_.Decode(Said(ids));
  if (return_token_ids_) ids_.insert(ids_.end(), ids.begin(), ids.end());
}

std::string Reply::Whole(const v1::Finish& finish) {
  text_ += decoder_.Finish();
  json whole = json::parse(Chunk(text_, ids_, ReasonName(finish.reason())));
  whole["usage"] = UsageOf(finish.usage());
  return Dump(whole);
}

}  // namespace bfio::openai
