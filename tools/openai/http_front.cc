#include "tools/openai/http_front.h"

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/auth/bearer_tokens.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/spdlog.h"
#include "common/http/bounded_server.h"
#include "common/http/host_name.h"
#include "common/http/plain_requests.h"
#include "common/net/exposure.h"
#include "tools/openai/front_metrics.h"
#include "tools/openai/reply.h"

namespace bfio::openai {
namespace {

constexpr char kJson[] = "application/json";
// How often a client that waits is looked after.
constexpr absl::Duration kLook = absl::Milliseconds(250);
constexpr absl::Duration kHealthTimeout = absl::Seconds(2);
// Headers that are passed on, and what they may hold: more than any tracer sends.
constexpr const char* kPassedOn[] = {"traceparent", "tracestate"};
constexpr size_t kMaxPassedOn = 512, kMaxRequestId = 128;

bool IsPrintable(absl::string_view text) {
  for (const char c : text) {
    if (c < ' ' || c > '~') return false;
  }
  return true;
}

void Answer(httplib::Response& response, int status, std::string body) {
  response.status = status;
  response.set_content(std::move(body), kJson);
}

void Fail(httplib::Response& response, const absl::Status& status) {
  ErrorReply reply = ToError(status);
  if (reply.retry_after_s.has_value()) {
    response.set_header("Retry-After", absl::StrCat(*reply.retry_after_s));
  }
  if (reply.http_status == 401) response.set_header("WWW-Authenticate", "Bearer");
  Answer(response, reply.http_status, std::move(reply.body));
}

// The request is not read to its end, so it is the connection's last.
void CloseAfter(httplib::Response& response) {
  if (HttpConnection* connection = HttpConnection::Current()) connection->CloseAfterReply();
  response.set_header("Connection", "close");
}

void Refuse(httplib::Response& response, int status, const std::string& why) {
  CloseAfter(response);
  Answer(response, status, ErrorBody(status, why));
}

}  // namespace

class HttpFront::Impl {
 public:
  Impl(FrontOptions options, client::Client* client, std::unique_ptr<ReloadedTls> tls)
      : options_(std::move(options)),
        client_(client),
        started_at_(absl::Now()),
        server_({.header_bytes = options_.max_header_bytes, .body_bytes = options_.max_body_bytes},
                options_.max_connections, std::move(tls)) {
    const httplib::Server::HandlerWithResponse on_error = [](const httplib::Request&,
                                                             httplib::Response& response) {
      const HttpConnection* connection = HttpConnection::Current();
      if (connection != nullptr && connection->HeadersTooLarge()) response.status = 431;
      // httplib continues behind what it could not read.
      if (connection != nullptr && !connection->request_understood()) CloseAfter(response);
      if (response.body.empty()) {
        response.set_content(ErrorBody(response.status, "not a request that can be served"), kJson);
      }
      return httplib::Server::HandlerResponse::Handled;
    };
    server_.set_error_handler(on_error);
    server_.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
      if (HttpConnection* connection = HttpConnection::Current()) connection->RequestUnderstood();
      if (HasUnreadBody(request)) CloseAfter(response);
      SendWholeAndPlain(request);
      return httplib::Server::HandlerResponse::Unhandled;
    });
    const auto get = [this](const httplib::Request& request, httplib::Response& response) {
      Get(request, response);
    };
    const auto no = [](const httplib::Request&, httplib::Response& response) {
      Refuse(response, 405, "only GET and POST");
    };
    const auto no_body = [](const httplib::Request&, httplib::Response& response,
                            const httplib::ContentReader&) { Refuse(response, 405, "only GET and POST"); };
    server_.Get(".*", get);
    server_.Post(".*", [this](const httplib::Request& request, httplib::Response& response,
                              const httplib::ContentReader& read) { Post(request, response, read); });
    server_.Post(".*", [](const httplib::Request&, httplib::Response& response) {
      Refuse(response, 400, "the request has no body");
    });
    server_.Put(".*", no_body).Patch(".*", no_body).Delete(".*", no_body).Delete(".*", no).Options(".*", no);
  }

  ~Impl() { Stop(absl::ZeroDuration()); }

  absl::Status Bind() {
    const absl::StatusOr<Address> address = ParseAddress(options_.listen, true);
    if (!address.ok()) return address.status();
    Address bound = *address;
    const int port = address->port == 0 ? server_.bind_to_any_port(address->host)
                     : server_.bind_to_port(address->host, address->port) ? address->port
                                                                          : -1;
    if (port <= 0) return absl::UnavailableError(absl::StrCat("cannot listen on ", address->ToString()));
    server_.WidenBacklog();
    bound.port = static_cast<uint16_t>(port);
    address_ = bound.ToString();
    loopback_ = IsLoopback(bound);
    return absl::OkStatus();
  }

  void Start() {
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      ended_ = true;
    });
    // stop() before listen_after_bind has begun would be forgotten, and the thread never end.
    while (!server_.is_running() && !ended_) std::this_thread::yield();
  }

  void Stop(absl::Duration patience) {
    if (!thread_.joinable()) return;
    draining_ = true;
    {
      MutexLock lock(&mutex_);
      const auto idle = [](int* under_way) { return *under_way == 0; };
      mutex_.AwaitWithTimeout(absl::Condition(+idle, &under_way_), patience);
    }
    stopping_ = true;
    server_.Stop();
    thread_.join();
  }

  const std::string& address() const { return address_; }
  bool running() const { return !ended_; }
  std::string MetricsText(const std::string& version) {
    const int64_t waiting = server_.load().waiting;
    return metrics_.Text(version, waiting + server_.load().running, waiting);
  }

 private:
  // One completion on its way.
  struct Call {
    Call(Impl* front, std::unique_ptr<client::TokenStream> tokens, Reply replies,
         std::shared_ptr<FrontMetrics::Completion> counted)
        : impl(front), stream(std::move(tokens)), reply(std::move(replies)), completion(std::move(counted)) {
      MutexLock lock(&impl->mutex_);
      ++impl->under_way_;
    }
    ~Call() {
      stream.reset();  // cancels what has not ended
      MutexLock lock(&impl->mutex_);
      --impl->under_way_;
    }
    // The next event; nothing when the client has gone.
    std::optional<client::TokenStream::Event> Next() {
      for (;;) {
        // Also while tokens come: a client that does not stream would go unnoticed otherwise.
        if (const absl::Time now = MonotonicNow(); now >= look_at) {
          const HttpConnection* connection = HttpConnection::Current();
          if (impl->stopping_) return absl::UnavailableError("shutting down");
          if (connection != nullptr && connection->PeerGone()) return std::nullopt;
          look_at = now + kLook;
        }
        client::TokenStream::Event event = stream->Next(kLook);
        if (std::holds_alternative<client::StillWaiting>(event)) continue;
        if (const auto* tokens = std::get_if<client::Tokens>(&event)) {
          completion->AddTokens(static_cast<int64_t>(tokens->ids.size()));
        }
        return event;
      }
    }

    Impl* const impl;
    std::unique_ptr<client::TokenStream> stream;
    Reply reply;
    const std::shared_ptr<FrontMetrics::Completion> completion;
    std::optional<client::TokenStream::Event> first;
    absl::Time look_at = absl::InfinitePast();
  };

  bool MayEnter(const httplib::Request& request, httplib::Response& response) {
    if (!loopback_ || NamesThisMachine(request.get_header_value("Host"))) return true;
    Refuse(response, 403, "call this port by its number or as localhost");
    return false;
  }

  void Get(const httplib::Request& request, httplib::Response& response) {
    if (!MayEnter(request, response)) return;
    if (request.path == "/v1/models") {
      const nlohmann::json model = {{"id", options_.parse.model},
                                    {"object", "model"},
                                    {"created", absl::ToUnixSeconds(started_at_)},
                                    {"owned_by", "bfio"}};
      return Answer(response, 200, nlohmann::json{{"object", "list"}, {"data", {model}}}.dump());
    }
    if (request.path != "/health") {
      return Answer(response, 404, ErrorBody(404, absl::StrCat("no ", request.path, " here")));
    }
    const auto loads = client_->GetLoads(std::nullopt, kHealthTimeout);
    // A router that requires authentication is there.
    const absl::Status status = absl::IsUnauthenticated(loads.status()) ? absl::OkStatus() : loads.status();
    if (draining_) return Fail(response, absl::UnavailableError("shutting down"));
    if (!status.ok()) return Fail(response, absl::UnavailableError(status.message()));
    if (loads.ok() && loads->dp_rank_count() == 0)
      return Fail(response, absl::UnavailableError("no workers"));
    Answer(response, 200, "{}");
  }

  void Post(const httplib::Request& request, httplib::Response& response,
            const httplib::ContentReader& read) {
    const auto completion = std::make_shared<FrontMetrics::Completion>(&metrics_);
    PostCounted(request, response, read, completion);
    // A stream has still to be sent, and sets its own.
    if (!response.content_provider_) completion->set_code(response.status);
  }

  void PostCounted(const httplib::Request& request, httplib::Response& response,
                   const httplib::ContentReader& read,
                   const std::shared_ptr<FrontMetrics::Completion>& completion) {
    if (!MayEnter(request, response)) return;
    const bool chat = request.path == "/v1/chat/completions";
    if (!chat && request.path != "/v1/completions") {
      return Refuse(response, 404, absl::StrCat("no ", request.path.substr(0, 100), " here"));
    }
    if (!absl::StartsWith(request.get_header_value("Content-Type"), kJson)) {
      return Refuse(response, 415, "only application/json");
    }
    std::string body;
    bool too_large = false;
    // Counted as it is unpacked, whatever its headers say.
    const bool whole = read([&](const char* data, size_t size) {
      too_large = body.size() + size > options_.max_body_bytes;
      if (!too_large) body.append(data, size);
      return !too_large;
    });
    if (too_large || response.status == 413) {
      return Refuse(response, 413, absl::StrCat("the body may have ", options_.max_body_bytes, " bytes"));
    }
    if (!whole) return Refuse(response, 400, "the body did not come");
    Complete(chat ? Api::kChat : Api::kCompletions, request, body, completion, response);
  }

  absl::StatusOr<CompletionRequest> Parse(Api api, const std::string& body) {
    // One at a time: a parsed body takes many times its size.
    MutexLock lock(&parsing_);
    return ParseCompletionRequest(api, body, options_.parse);
  }

  absl::StatusOr<client::CallOptions> OptionsOf(const httplib::Request& request) {
    client::CallOptions call = options_.call;
    for (const char* name : kPassedOn) {
      const std::string value = request.get_header_value(name);
      if (!value.empty() && value.size() <= kMaxPassedOn && IsPrintable(value)) {
        call.metadata.emplace_back(name, value);
      }
    }
    const std::string token(BearerToken(request.get_header_value("Authorization")));
    if (token.empty()) return call;
    if (token.size() > BearerTokens::kMaxTokenBytes || !IsPrintable(token)) {
      return absl::UnauthenticatedError("not a bearer token");
    }
    // Where forwarding is not safe it is left out, and the router answers with its own error.
    if (client_->MayCarryTokens()) call.token = token;
    return call;
  }

  void Complete(Api api, const httplib::Request& request, const std::string& body,
                const std::shared_ptr<FrontMetrics::Completion>& completion, httplib::Response& response) {
    if (draining_) return Fail(response, absl::UnavailableError("shutting down"));
    absl::StatusOr<CompletionRequest> parsed = Parse(api, body);
    if (!parsed.ok()) return Fail(response, parsed.status());
    absl::StatusOr<client::CallOptions> call_options = OptionsOf(request);
    if (!call_options.ok()) return Fail(response, call_options.status());
    const std::string id = request.get_header_value("X-Request-Id");
    if (id.size() > kMaxRequestId || !IsPrintable(id)) {
      return Fail(response,
                  absl::InvalidArgumentError("X-Request-Id: must be at most 128 printable characters"));
    }
    parsed->generate.set_request_id(id);
    auto stream = client_->Generate(std::move(parsed->generate), *std::move(call_options));
    const std::string request_id = stream->request_id();
    response.set_header("X-Request-Id", request_id);
    const auto call = std::make_shared<Call>(
        this, std::move(stream),
        Reply(api, *parsed, options_.parse.model, request_id, options_.parse.byte_offset, absl::Now()),
        completion);
    // Whatever ends a request before its first token ends it with the right status.
    call->first = call->Next();
    if (!call->first.has_value()) return Fail(response, absl::CancelledError("the client has gone"));
    if (const auto* status = std::get_if<absl::Status>(&*call->first)) return Fail(response, *status);
    if (parsed->stream) return Stream(call, response);
    Collect(*call, response);
  }

  static void Stream(const std::shared_ptr<Call>& call, httplib::Response& response) {
    response.status = 200;
    response.set_header("Cache-Control", "no-cache");
    response.set_chunked_content_provider("text/event-stream", [call](size_t, httplib::DataSink& sink) {
      const auto event = call->first ? std::exchange(call->first, std::nullopt) : call->Next();
      if (!event.has_value()) return false;
      std::string text;
      if (const auto* tokens = std::get_if<client::Tokens>(&*event)) {
        text = call->reply.TokensEvent(tokens->ids);
        return text.empty() || sink.write(text.data(), text.size());
      }
      int code = 200;
      if (const auto* finish = std::get_if<v1::Finish>(&*event)) text = call->reply.FinishEvents(*finish);
      if (const auto* status = std::get_if<absl::Status>(&*event)) {
        text = Reply::ErrorEvent(*status);
        code = ToError(*status).http_status;
      }
      const bool written = sink.write(text.data(), text.size());
      if (written) call->completion->set_code(code);
      sink.done();
      return written;
    });
  }

  static void Collect(Call& call, httplib::Response& response) {
    std::optional<client::TokenStream::Event> event = std::move(call.first);
    for (;; event = call.Next()) {
      if (!event.has_value()) return Fail(response, absl::CancelledError("the client has gone"));
      if (const auto* tokens = std::get_if<client::Tokens>(&*event)) call.reply.Add(tokens->ids);
      if (const auto* status = std::get_if<absl::Status>(&*event)) return Fail(response, *status);
      if (const auto* finish = std::get_if<v1::Finish>(&*event)) {
        return Answer(response, 200, call.reply.Whole(*finish));
      }
    }
  }

  const FrontOptions options_;
  client::Client* const client_;
  const absl::Time started_at_;
  std::string address_;
  bool loopback_ = true;
  std::atomic<bool> draining_ = false, stopping_ = false, ended_ = false;
  Mutex parsing_;
  Mutex mutex_;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  FrontMetrics metrics_;
  BoundedServer server_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpFront>> HttpFront::Bind(FrontOptions options, client::Client* client) {
  std::unique_ptr<ReloadedTls> tls;
  if (!options.tls_cert.empty()) {
    auto loaded = ReloadedTls::Load(options.tls_cert, options.tls_key);
    if (!loaded.ok()) return loaded.status();
    tls = *std::move(loaded);
  }
  auto impl = std::make_unique<Impl>(std::move(options), client, std::move(tls));
  if (absl::Status status = impl->Bind(); !status.ok()) return status;
  return std::unique_ptr<HttpFront>(new HttpFront(std::move(impl)));
}

HttpFront::HttpFront(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpFront::~HttpFront() = default;
void HttpFront::Start() {
  impl_->Start();
}
void HttpFront::Stop(absl::Duration patience) {
  impl_->Stop(patience);
}
bool HttpFront::running() const {
  return impl_->running();
}
std::string HttpFront::MetricsText(const std::string& version) const {
  return impl_->MetricsText(version);
}
const std::string& HttpFront::address() const {
  return impl_->address();
}

}  // namespace bfio::openai
