#include "router/frontend/endpoint_picker/exchange.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/retry_delay.h"
#include "common/json/json_reader.h"

namespace bfio::router::picker {
namespace {

namespace pb = envoy::service::ext_proc::v3;

// Of the endpoint picker protocol (Gateway API Inference Extension, proposal 004).
constexpr char kEndpoint[] = "x-gateway-destination-endpoint";
constexpr char kServed[] = "x-gateway-destination-endpoint-served";
constexpr char kNamespace[] = "envoy.lb";
constexpr char kSubsetNamespace[] = "envoy.lb.subset_hint";
constexpr char kSubset[] = "x-gateway-destination-endpoint-subset";
// Read by vLLM and SGLang.
constexpr char kRank[] = "x-data-parallel-rank";
// Read by llm-d's sidecar.
constexpr char kPrefiller[] = "x-prefiller-host-port", kOldPrefiller[] = "x-prefiller-url";
// Envoy's own limit of a piece is 64 KiB.
constexpr size_t kPieceBytes = 62'000;
// What is kept of a header's value, and of a list of endpoints: those beyond it are not used.
constexpr size_t kMostHeaderBytes = 4096, kMostSubsetBytes = size_t{256} << 10;

const std::string& ValueOf(const pb::HeaderValue& header) {
  return header.raw_value().empty() ? header.value() : header.raw_value();
}

// A text in a struct; empty: absent.
std::string TextIn(const google::protobuf::Struct& values, const std::string& name) {
  const auto found = values.fields().find(name);
  return found == values.fields().end() ? std::string() : found->second.string_value();
}

// The first attribute of this name, whatever filter they are listed under.
std::string AttributeIn(const In& message, const std::string& name) {
  for (const auto& [filter, values] : message.attributes()) {
    if (std::string text = TextIn(values, name); !text.empty()) return text;
  }
  return {};
}

// The list, or the texts between commas.
std::optional<absl::flat_hash_set<std::string>> SubsetIn(const In& message) {
  const auto found = message.metadata_context().filter_metadata().find(kSubsetNamespace);
  if (found == message.metadata_context().filter_metadata().end()) return std::nullopt;
  const auto value = found->second.fields().find(kSubset);
  if (value == found->second.fields().end()) return std::nullopt;
  std::string text = value->second.string_value();
  for (const auto& one : value->second.list_value().values()) absl::StrAppend(&text, ",", one.string_value());
  absl::flat_hash_set<std::string> subset;
  size_t bytes = 0;
  for (absl::string_view one : absl::StrSplit(text, ',')) {
    one = absl::StripAsciiWhitespace(one);
    if ((bytes += one.size()) > kMostSubsetBytes) break;
    if (!one.empty()) subset.emplace(one);
  }
  return subset;
}

void SetHeader(const char* name, std::string value, pb::HeaderMutation& mutation) {
  pb::HeaderValueOption& option = *mutation.add_set_headers();
  option.mutable_header()->set_key(name);
  option.mutable_header()->set_raw_value(std::move(value));
  option.set_append_action(pb::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
}

uint32_t HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition: return 400;
    case absl::StatusCode::kPermissionDenied: return 403;
    case absl::StatusCode::kAlreadyExists: return 409;
    case absl::StatusCode::kOutOfRange:  // only for bodies
      return 413;
    case absl::StatusCode::kResourceExhausted: return 429;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled: return 503;
    case absl::StatusCode::kDeadlineExceeded: return 504;
    default: return 500;
  }
}

// As a string in JSON.
std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? ' ' : c);
  }
  return out + "\"";
}

}  // namespace

Exchange::Action Exchange::OnMessage(In&& message) {
  // The place was chosen without it; Envoy waits for an answer to it.
  const bool follows = (phase_ == Phase::kForwarding || phase_ == Phase::kResponding) &&
                       request_mode_ != pb::FULL_DUPLEX_STREAMED;
  switch (message.request_case()) {
    case In::kRequestHeaders: return phase_ == Phase::kHeaders ? OnRequestHeaders(message) : Action::kBroken;
    case In::kRequestBody:
      if (phase_ == Phase::kBody) return OnRequestBody(*message.mutable_request_body());
      if (follows) Answer().mutable_request_body()->mutable_response();
      return follows || phase_ == Phase::kEnded ? Action::kNone : Action::kBroken;
    case In::kRequestTrailers:
      trailers_ = true;
      if (phase_ == Phase::kBody) return Complete();
      if (follows) Answer().mutable_request_trailers();
      return follows || phase_ == Phase::kEnded ? Action::kNone : Action::kBroken;
    case In::kResponseHeaders: OnResponseHeaders(message); return Action::kNone;
    case In::kResponseBody: OnResponseBody(*message.mutable_response_body()); return Action::kNone;
    case In::kResponseTrailers:
      response_complete_ = true;
      if (!observed_) Answer().mutable_response_trailers();
      return Action::kNone;
    case In::REQUEST_NOT_SET: break;
  }
  return Action::kBroken;
}

Exchange::Action Exchange::OnRequestHeaders(const In& message) {
  observed_ = message.observability_mode();
  // Gateways of the Inference Extension must use this mode, also those that do not say it.
  request_mode_ = message.has_protocol_config() ? message.protocol_config().request_body_mode()
                                                : pb::FULL_DUPLEX_STREAMED;
  response_mode_ = message.protocol_config().response_body_mode();
  sends_response_body_ = response_mode_ != pb::NONE;
  const Headers& from = message.request_headers();
  for (const pb::HeaderValue& header : from.headers().headers()) {
    const auto name = std::find_if(kept_headers_.begin(), kept_headers_.end(), [&](const std::string& kept) {
      return absl::EqualsIgnoreCase(kept, header.key());
    });
    if (name != kept_headers_.end()) headers_.try_emplace(*name, ValueOf(header).substr(0, kMostHeaderBytes));
  }
  if (observed_) {
    phase_ = Phase::kEnded;
    return Action::kNone;
  }
  subset_ = SubsetIn(message);
  phase_ = Phase::kBody;
  bodiless_ = from.end_of_stream();
  const bool whole = request_mode_ == pb::BUFFERED || request_mode_ == pb::BUFFERED_PARTIAL;
  if (bodiless_ || request_mode_ == pb::NONE || request_mode_ == pb::STREAMED) return Complete();
  if (whole) Answer().mutable_request_headers()->mutable_response();
  return Action::kNone;
}

Exchange::Action Exchange::OnRequestBody(Body& body) {
  if (body_.size() + body.body().size() > body_limit_) return Action::kTooLarge;
  if (body_.empty()) {
    body_.swap(*body.mutable_body());
  } else {
    body_.append(body.body());
  }
  const bool ends = body.end_of_stream() || body.end_of_stream_without_message();
  return ends || request_mode_ == pb::BUFFERED_PARTIAL ? Complete() : Action::kNone;
}

Exchange::Action Exchange::Complete() {
  phase_ = Phase::kHeld;
  return Action::kPlace;
}

void Exchange::DropBody() {
  if (request_mode_ != pb::FULL_DUPLEX_STREAMED) body_ = std::string();
}

absl::string_view Exchange::header(absl::string_view name) const {
  const auto found = headers_.find(name);
  return found == headers_.end() ? absl::string_view() : found->second;
}

void Exchange::OnPlaced(const PlacedRequest::Place& place) {
  phase_ = Phase::kForwarding;
  std::string body = std::exchange(body_, {});
  if (!place.members.empty()) body = WithMembers(body, place.members);
  Out& answer = Answer();
  const bool at_body = (request_mode_ == pb::BUFFERED || request_mode_ == pb::BUFFERED_PARTIAL) && !bodiless_;
  pb::CommonResponse& response = *(at_body ? answer.mutable_request_body()->mutable_response()
                                           : answer.mutable_request_headers()->mutable_response());
  SetHeader(kEndpoint, place.server, *response.mutable_header_mutation());
  if (place.rank) SetHeader(kRank, absl::StrCat(*place.rank), *response.mutable_header_mutation());
  if (place.prefill_server) {
    // A client's own would have the sidecar call anyone.
    pb::HeaderMutation& mutation = *response.mutable_header_mutation();
    mutation.add_remove_headers(kOldPrefiller);
    if (place.prefill_server->empty()) {
      mutation.add_remove_headers(kPrefiller);
    } else {
      SetHeader(kPrefiller, *place.prefill_server, mutation);
    }
  }
  response.set_clear_route_cache(true);
  (*(*answer.mutable_dynamic_metadata()->mutable_fields())[kNamespace]
        .mutable_struct_value()
        ->mutable_fields())[kEndpoint]
      .set_string_value(place.server);
  if (at_body && !place.members.empty()) {
    SetHeader("content-length", absl::StrCat(body.size()), *response.mutable_header_mutation());
    response.mutable_body_mutation()->set_body(std::move(body));
  }
  if (request_mode_ != pb::FULL_DUPLEX_STREAMED || bodiless_) return;
  // Envoy has given the body away, and forwards what comes back.
  size_t from = 0;
  do {
    const size_t size = std::min(kPieceBytes, body.size() - from);
    auto& piece = *Answer()
                       .mutable_request_body()
                       ->mutable_response()
                       ->mutable_body_mutation()
                       ->mutable_streamed_response();
    piece.set_body(body.substr(from, size));
    from += size;
    piece.set_end_of_stream(from == body.size() && !trailers_);
  } while (from < body.size());
  if (trailers_) Answer().mutable_request_trailers();
}

void Exchange::OnRefused(const absl::Status& status) {
  if (phase_ == Phase::kForwarding || phase_ == Phase::kResponding || phase_ == Phase::kEnded) return;
  phase_ = Phase::kEnded;
  body_ = std::string();
  const uint32_t code = HttpStatusOf(status);
  pb::ImmediateResponse& answer = *Answer().mutable_immediate_response();
  answer.mutable_status()->set_code(code);
  SetHeader("content-type", "application/json", *answer.mutable_headers());
  // Clients wait whole seconds.
  if (code == 429 || code == 503) {
    const absl::Duration delay = GetRetryDelay(status).value_or(absl::Seconds(1));
    SetHeader("retry-after",
              absl::StrCat(std::max<int64_t>(1, absl::ToInt64Seconds(absl::Ceil(delay, absl::Seconds(1))))),
              *answer.mutable_headers());
  }
  answer.set_body(absl::StrCat("{\"error\":{\"message\":", Quoted(status.message()), ",\"type\":",
                               Quoted(absl::AsciiStrToLower(absl::StatusCodeToString(status.code()))),
                               ",\"code\":", code, "}}"));
  answer.set_details("bfio");
}

void Exchange::OnResponseHeaders(const In& message) {
  response_complete_ = message.response_headers().end_of_stream();
  for (const pb::HeaderValue& header : message.response_headers().headers().headers()) {
    if (header.key() == ":status" && !absl::SimpleAtoi(ValueOf(header), &status_)) status_ = 0;
  }
  const auto served = message.metadata_context().filter_metadata().find(kNamespace);
  if (served != message.metadata_context().filter_metadata().end()) served_ = TextIn(served->second, kServed);
  if (served_.empty()) served_ = AttributeIn(message, "upstream.address");
  const std::string details = AttributeIn(message, "response.code_details");
  if (details != "via_upstream") failure_ = details.empty() && status_ == 503 ? "no reason given" : details;
  if (observed_) return;
  if (phase_ == Phase::kForwarding) phase_ = Phase::kResponding;
  if (phase_ != Phase::kEnded) Answer().mutable_response_headers()->mutable_response();
}

void Exchange::OnResponseBody(Body& body) {
  response_complete_ = response_complete_ || body.end_of_stream() || body.end_of_stream_without_message();
  if (observed_ || phase_ == Phase::kEnded) return;
  pb::CommonResponse& response = *Answer().mutable_response_body()->mutable_response();
  if (response_mode_ != pb::FULL_DUPLEX_STREAMED) return;
  auto& piece = *response.mutable_body_mutation()->mutable_streamed_response();
  piece.set_end_of_stream(body.end_of_stream());
  piece.mutable_body()->swap(*body.mutable_body());
}

}  // namespace bfio::router::picker
