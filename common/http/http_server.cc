#include "common/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/base/mutex.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/http/bounded_pool.h"
#include "common/http/bounded_server.h"
#include "common/http/reloaded_tls.h"

namespace bfio {
namespace {

// Requests at once, beside endless replies.
constexpr int kRequests = 8;
// A connection holds a thread even while it is idle or slow.
constexpr absl::Duration kReadTimeout = absl::Seconds(5), kCrowdedReadTimeout = absl::Seconds(1);
constexpr absl::Duration kWriteTimeout = absl::Seconds(5), kIdlePatience = absl::Seconds(2);
constexpr size_t kMaxBodyBytes = 64 << 10;
constexpr absl::Duration kReopenPause = absl::Milliseconds(250);
// Allows only this server's own scripts, and no framing by other pages.
constexpr char kContentPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// For a port that only this machine should reach: rejects requests of web pages whose host name was made to
// resolve to this machine (DNS rebinding). True for "localhost" and IP addresses, with or without a port: an
// attacker cannot redirect these.
bool NamesThisMachine(absl::string_view host) {
  if (absl::StartsWith(host, "[")) return true;
  host = host.substr(0, host.find(':'));
  return host.empty() || host == "localhost" ||
         host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

// httplib reads the bodies of these methods only, and of PRI without asking a handler; another method's body
// would be parsed as the next request.
bool HasUnreadBody(const httplib::Request& request) {
  if (request.method == "POST" || request.method == "PUT" || request.method == "PATCH" ||
      request.method == "DELETE") {
    return false;
  }
  if (request.method == "PRI") return true;
  return request.has_header("Transfer-Encoding") ||
         request.get_header_value("Content-Length").find_first_not_of('0') != std::string::npos;
}

// httplib keeps a space before a header's colon in its name, reads the first of several lengths, and of one
// as many digits as there are. A proxy may take another one, or the header for what its name says.
bool HasAmbiguousFraming(const httplib::Request& request) {
  const std::string length = request.get_header_value("Content-Length");
  if (request.get_header_value_count("Content-Length") > 1 || length.size() > 18 ||
      length.empty() == request.has_header("Content-Length") ||
      !std::all_of(length.begin(), length.end(), absl::ascii_isdigit)) {
    return true;
  }
  return std::any_of(request.headers.begin(), request.headers.end(), [](const auto& header) {
    return !std::all_of(header.first.begin(), header.first.end(), absl::ascii_isgraph);
  });
}

// Debian's httplib would compress any reply that the client allows, with Brotli's slowest setting: tens of
// milliseconds for a page. It would also send a range as often as a client lists it. httplib reads both
// headers after this call, from the same request, which is not a const object. httplib 0.11.4 has no setting
// for either, and passes a const reference to the handlers that call this.
void SendWholeAndPlain(const httplib::Request& request) {
  auto& own = const_cast<httplib::Request&>(request);
  own.headers.erase("Accept-Encoding");
  own.ranges.clear();
}

HttpRequest ToRequest(const httplib::Request& request, std::string caller, std::string body = "") {
  HttpRequest result;
  result.caller = std::move(caller);
  for (const auto& [name, value] : request.params) result.query.emplace(name, value);
  result.body = std::move(body);
  return result;
}

void Refuse(httplib::Response& response, int status, const std::string& why) {
  response.status = status;
  response.set_content(why + "\n", "text/plain; charset=utf-8");
}

// For a request that is not read to its end.
void CloseAfter(httplib::Response& response) {
  if (HttpConnection* connection = HttpConnection::Current()) connection->CloseAfterReply();
  response.set_header("Connection", "close");
}

void RefuseAndClose(httplib::Response& response, int status, const std::string& why) {
  CloseAfter(response);
  Refuse(response, status, why);
}

ConnectionLimits Limits() {
  ConnectionLimits limits;
  limits.header_bytes = 16 << 10;
  limits.body_bytes = kMaxBodyBytes;
  limits.read_timeout = kReadTimeout;
  limits.crowded_read_timeout = kCrowdedReadTimeout;
  limits.write_timeout = kWriteTimeout;
  limits.first_patience = kReadTimeout;
  limits.idle_patience = kIdlePatience;
  return limits;
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(Authenticate authenticate, bool certified, std::unique_ptr<ReloadedTls> tls)
      : authenticate_(std::move(authenticate)),
        certified_(certified),
        server_(Limits(), kRequests, kMaxStreams, std::move(tls)) {
    // Paths are matched here, because httplib's own are regular expressions.
    const auto any = [this](const httplib::Request& request, httplib::Response& response) {
      Answer(request, response, nullptr);
    };
    // httplib would read a body before it calls a handler without a reader, and parse forms in it.
    const auto with_body = [this](const httplib::Request& request, httplib::Response& response,
                                  const httplib::ContentReader& body) { Answer(request, response, &body); };
    server_.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
      SendWholeAndPlain(request);
      response.set_header("Cache-Control", "no-store");
      // httplib bounds a body only by its stated length, and decompresses it without a bound.
      const bool coded = request.has_header("Transfer-Encoding") || request.has_header("Content-Encoding");
      if (HasAmbiguousFraming(request)) {
        RefuseAndClose(response, 400, "invalid headers");
      } else if (HasUnreadBody(request)) {
        RefuseAndClose(response, 400, "this method cannot have a request body");
      } else if (coded) {
        RefuseAndClose(response, 415, "the request body cannot have a Transfer-Encoding or Content-Encoding");
      } else if (request.method == "POST" && !request.has_header("Content-Length")) {
        RefuseAndClose(response, 411, "the request needs a Content-Length");
      } else {
        return httplib::Server::HandlerResponse::Unhandled;
      }
      return httplib::Server::HandlerResponse::Handled;
    });
    const httplib::Server::HandlerWithResponse on_error = [](const httplib::Request& request,
                                                             httplib::Response& response) {
      // The request was not routed: its end, and so the start of the next one, is unknown.
      if (!response.has_header("Cache-Control")) {
        SendWholeAndPlain(request);
        const HttpConnection* connection = HttpConnection::Current();
        const bool large = connection != nullptr && connection->HeadersTooLarge();
        RefuseAndClose(response, large ? 431 : response.status, "invalid request");
      }
      return httplib::Server::HandlerResponse::Handled;
    };
    server_.set_error_handler(on_error);
    server_.Get(".*", any);
    server_.Post(".*", with_body);
    server_.Put(".*", with_body);
    server_.Patch(".*", with_body);
    server_.Delete(".*", with_body);
    server_.Options(".*", any);
  }

  ~Impl() {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    AwaitListening();
    // A port that was lost is already closed, and its descriptor may belong to another file now.
    if (!server_.ending()) server_.Stop();
    thread_.join();
  }

  absl::Status Bind(const Address& address) {
    const std::string refused = absl::StrCat("cannot listen on ", address.ToString());
    Address bound = address;
    if (address.port == 0) {
      const int port = server_.bind_to_any_port(address.host);
      if (port <= 0) return absl::UnavailableError(refused);
      bound.port = static_cast<uint16_t>(port);
    } else if (!server_.bind_to_port(address.host, address.port)) {
      return absl::UnavailableError(refused);
    }
    server_.WidenBacklog();
    bound_ = bound;
    address_ = bound.ToString();
    return absl::OkStatus();
  }

  struct Route {
    std::string method;
    Handler handler;
    // Content type and source of an endless reply, used instead of the handler.
    std::string content_type;
    StreamHandler stream;
    Access access = Access::kAuthenticated;
  };
  void Add(const std::string& path, Route route) { routes_[path] = std::move(route); }

  void Start() {
    listening_ = true;
    thread_ = std::thread([this] { Listen(); });
    AwaitListening();
  }

  const std::string& address() const { return address_; }

 private:
  void Listen() {
    for (;;) {
      server_.listen_after_bind();
      listening_ = false;
      // httplib closes the port at the first unexpected error of accept().
      if (!stopping_) spdlog::error("http: lost the port {}; opening it again", address_);
      for (bool lost = true; lost;) {
        MutexLock lock(&mutex_);
        if (stopping_) return;
        if (mutex_.AwaitWithTimeout(
                absl::Condition(
                    +[](std::atomic<bool>* stopping) { return stopping->load(); }, &stopping_),
                kReopenPause)) {
          return;
        }
        lost = !server_.bind_to_port(bound_.host, bound_.port);
        if (lost) continue;
        server_.WidenBacklog();
        server_.Reopened();
        listening_ = true;
      }
    }
  }

  // A stop() before listen_after_bind has started would be lost, and the thread would never end.
  void AwaitListening() const {
    while (listening_ && !server_.is_running()) std::this_thread::yield();
  }

  // `body`: reads the request's body; null if it has none.
  void Answer(const httplib::Request& request, httplib::Response& response,
              const httplib::ContentReader* body) {
    std::string caller, text;
    const Route* const route = Permitted(request, response, caller);
    const auto append = [&text](const char* data, size_t size) {
      text.append(data, size);
      return true;
    };
    if (route == nullptr) {
      if (body != nullptr) CloseAfter(response);
    } else if (body != nullptr && !(*body)(append)) {
      RefuseAndClose(response, std::max(response.status, 400), "invalid request");
    } else if (route->stream) {
      Begin(*route, request, response);
    } else {
      HttpReply reply = route->handler(ToRequest(request, std::move(caller), std::move(text)));
      response.status = reply.status;
      response.set_content(std::move(reply.body), reply.content_type);
    }
  }

  // Decides by path, method and headers. Null: the request is refused, and `response` is complete.
  const Route* Permitted(const httplib::Request& request, httplib::Response& response, std::string& caller) {
    const auto refused = [&response](int status, const std::string& why) {
      Refuse(response, status, why);
      return nullptr;
    };
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Content-Security-Policy", kContentPolicy);
    response.set_header("Referrer-Policy", "no-referrer");
    const auto found = routes_.find(request.path);
    if (found == routes_.end()) return refused(404, "no such page");
    const Route& route = found->second;
    if (request.method != route.method && !(request.method == "HEAD" && route.method == "GET")) {
      response.set_header("Allow", route.method);
      return refused(405, absl::StrCat("only ", route.method));
    }
    caller = request.remote_addr;
    if (authenticate_ && route.access == Access::kEverybody) {
      // No access check.
    } else if (authenticate_) {
      absl::StatusOr<std::string> entered = authenticate_(CallerOf(route, request));
      if (!entered.ok()) {
        const bool forbidden = entered.status().code() == absl::StatusCode::kPermissionDenied;
        if (!forbidden) response.set_header("WWW-Authenticate", "Bearer");
        return refused(forbidden ? 403 : 401, std::string(entered.status().message()));
      }
      caller = *std::move(entered);
    } else if (!certified_ && !NamesThisMachine(request.get_header_value("Host"))) {
      return refused(403, "the Host header must be an IP address or localhost");
    } else if (certified_ && !Names().empty()) {
      caller = Names().front();
    }
    if (route.method == "POST" &&
        !absl::StartsWith(request.get_header_value("Content-Type"), "application/json")) {
      return refused(415, "the Content-Type must be application/json");
    }
    return &route;
  }

  static std::vector<std::string> Names() {
    const HttpConnection* connection = HttpConnection::Current();
    return connection == nullptr ? std::vector<std::string>() : connection->PeerNames();
  }

  static HttpCaller CallerOf(const Route& route, const httplib::Request& request) {
    return {request.get_header_value("Authorization"), request.remote_addr, Names(), route.method == "POST"};
  }

  void Begin(const Route& route, const httplib::Request& request, httplib::Response& response) {
    if (request.method == "HEAD") return response.set_content("", route.content_type);
    if (streams_.fetch_add(1) >= kMaxStreams) {
      --streams_;
      response.set_header("Retry-After", "5");
      return Refuse(response, 503, "too many open streams");
    }
    if (HttpConnection* connection = HttpConnection::Current()) connection->LeaveTurn();
    response.status = 200;
    // A token may be removed while its stream is open.
    const bool checks = authenticate_ && route.access != Access::kEverybody;
    response.set_chunked_content_provider(
        route.content_type,
        [this, checks, caller = CallerOf(route, request), stream = route.stream(ToRequest(request, ""))](
            size_t, httplib::DataSink& sink) {
          std::optional<std::string> piece;
          if (!stopping_ && !server_.ending() && (!checks || authenticate_(caller).ok())) piece = stream();
          if (!piece.has_value()) {
            sink.done();
            return true;
          }
          return piece->empty() ? sink.is_writable() : sink.write(piece->data(), piece->size());
        },
        [this](bool) { --streams_; });
  }

  const Authenticate authenticate_;
  // Callers present a certificate: TLS rejects a page whose name was made to resolve here.
  const bool certified_;
  std::map<std::string, Route> routes_;
  std::atomic<int> streams_{0};
  Mutex mutex_;
  // Changes under mutex_.
  std::atomic<bool> stopping_{false};
  // Its destructor waits for its threads: streams must end first, or a lost port would never be reopened.
  BoundedServer server_;
  Address bound_;
  std::string address_;
  // True between a bind and the end of its listen_after_bind.
  std::atomic<bool> listening_{false};
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Bind(Options options) {
  BFIO_ASSIGN_OR_RETURN(const Address address, ParseAddress(options.listen, true));
  std::unique_ptr<ReloadedTls> tls;
  if (!options.tls_cert.empty()) {
    BFIO_ASSIGN_OR_RETURN(
        tls, ReloadedTls::Load({options.tls_cert, options.tls_key, options.tls_ca}, TlsEnd::kServer));
  }
  const bool certified = tls != nullptr && !options.tls_ca.empty();
  auto impl = std::make_unique<Impl>(std::move(options.authenticate), certified, std::move(tls));
  BFIO_RETURN_IF_ERROR(impl->Bind(address));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
void HttpServer::Get(const std::string& path, Handler handler, Access access) {
  impl_->Add(path, {"GET", std::move(handler), "", nullptr, access});
}
void HttpServer::Post(const std::string& path, Handler handler) {
  impl_->Add(path, {"POST", std::move(handler), "", nullptr});
}
void HttpServer::GetStream(const std::string& path, std::string content_type, StreamHandler handler) {
  impl_->Add(path, {"GET", nullptr, std::move(content_type), std::move(handler)});
}
void HttpServer::Start() {
  impl_->Start();
}
const std::string& HttpServer::address() const {
  return impl_->address();
}

}  // namespace bfio
