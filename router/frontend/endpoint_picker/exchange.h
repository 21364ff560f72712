// One HTTP request in Envoy's external processing protocol, without I/O: the messages of a stream in, the
// answers out. The picker holds the stream until the request has a place, and then answers with the address
// of its server; the response passes by. Envoy says in its first message how it sends bodies:
//
//   BUFFERED (default)    the headers are answered at once, the whole body when there is a place
//   FULL_DUPLEX_STREAMED  nothing is answered before there is a place; then headers, and the body in pieces
//   NONE, STREAMED        the headers are answered when there is a place, which is chosen without the body
//
// A prompt that another rank has computed changes the body: kv_transfer_params says where its KV is.
// With observability_mode nothing is answered: such a stream tells when a request ends whose own stream the
// picker has ended. Wire types end here. Threads: one at a time.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "envoy/ext_proc.pb.h"
#include "router/requests/placed_request.h"

namespace bfio::router::picker {

using In = envoy::service::ext_proc::v3::ProcessingRequest;
using Out = envoy::service::ext_proc::v3::ProcessingResponse;

class Exchange {
 public:
  enum class Phase {
    kHeaders,     // nothing has come
    kBody,        // the body is coming
    kHeld,        // waits for its place
    kForwarding,  // has its place; no response yet
    kResponding,  // the response has begun
    kEnded,       // answered by the picker itself, or only observed
  };
  // What a message asks of the stream's owner.
  enum class Action {
    kNone,
    // The request is complete: choose its place. Called once.
    kPlace,
    // Refuse it: more body than permitted.
    kTooLarge,
    // The stream cannot go on: a message that the protocol does not allow here.
    kBroken,
  };

  // `body_bytes`: bound of the body. `headers`: the names of those that are kept, in lower case.
  explicit Exchange(size_t body_bytes, absl::Span<const std::string> headers = {})
      : body_limit_(body_bytes), kept_headers_(headers) {}

  Action OnMessage(In&& message);
  // REQUIRES: kHeld; there is a body, where there are members.
  void OnPlaced(const PlacedRequest::Place& place);
  // Answers with an error instead of a place: `status` as an HTTP status with a body as OpenAI's. Does
  // nothing after OnPlaced.
  void OnRefused(const absl::Status& status);

  // The answers since the last call.
  std::deque<Out> TakeAnswers() { return std::exchange(answers_, {}); }

  Phase phase() const { return phase_; }
  // The stream may only be watched.
  bool observes() const { return observed_; }
  // Where the stream breaks, Envoy cuts the response, unless the picker has ended it before.
  bool binds_response() const { return request_mode_ == envoy::service::ext_proc::v3::FULL_DUPLEX_STREAMED; }
  // Value of a request header that is kept; empty: absent.
  absl::string_view header(absl::string_view name) const;
  // The request's body; only until it is forwarded.
  const std::string& body() const { return body_; }
  // The endpoints, "IP" or "IP:PORT", among which Envoy wants one; absent: any.
  const std::optional<absl::flat_hash_set<std::string>>& subset() const { return subset_; }
  // For reading it without a lock. It comes back unless the request has been refused meanwhile.
  std::string TakeBody() { return std::exchange(body_, {}); }
  void ReturnBody(std::string body) {
    if (phase_ == Phase::kHeld) body_ = std::move(body);
  }
  // Frees the body where Envoy keeps it itself; it can then not be changed.
  void DropBody();
  // "IP:PORT" of the server that has answered, as Envoy says; empty: it says none.
  const std::string& served() const { return served_; }
  // HTTP status of the response; 0: none has come.
  int status() const { return status_; }
  // Why the response is Envoy's and not the server's, as Envoy names it; empty: it is the server's.
  const std::string& failure() const { return failure_; }
  // The response has ended as it should, or what Envoy sends does not show its end.
  bool response_complete() const { return response_complete_ || !sends_response_body_; }

 private:
  using ProtocolConfig = envoy::service::ext_proc::v3::ProtocolConfiguration;
  using Headers = envoy::service::ext_proc::v3::HttpHeaders;
  using Body = envoy::service::ext_proc::v3::HttpBody;

  Action OnRequestHeaders(const In& message);
  Action OnRequestBody(Body& body);
  Action Complete();
  void OnResponseHeaders(const In& message);
  void OnResponseBody(Body& body);
  Out& Answer() { return answers_.emplace_back(); }

  const size_t body_limit_;
  const absl::Span<const std::string> kept_headers_;
  Phase phase_ = Phase::kHeaders;
  bool observed_ = false;
  envoy::service::ext_proc::v3::BodySendMode request_mode_ = {}, response_mode_ = {};
  // The request has no body; its end came as trailers.
  bool bodiless_ = false, trailers_ = false;
  absl::flat_hash_map<std::string, std::string> headers_;
  std::optional<absl::flat_hash_set<std::string>> subset_;
  std::string body_;
  std::string served_, failure_;
  int status_ = 0;
  bool sends_response_body_ = false, response_complete_ = false;
  std::deque<Out> answers_;
};

}  // namespace bfio::router::picker
