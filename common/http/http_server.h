// A small HTTP server for operators and their tools: /metrics, /healthz, pages. Content that must be
// reachable without gRPC. cpp-httplib serves it on its own threads; headers, bodies, connections, waiting
// requests and the time that callers may take are bounded. A handler runs on one of those threads and must
// not block for long. Threads: Start, Handle and destruction from one thread; handlers run concurrently.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bfio {

struct HttpRequest {
  // "after" of "?after=7"; empty when it is absent.
  std::map<std::string, std::string> query;
  std::string body;
  // Name of the caller as returned by `authenticate`; without it a name in its certificate, or its address.
  std::string caller;
};

// The caller, as far as it is known before the request is read.
struct HttpCaller {
  // From the Authorization header; empty without one.
  std::string authorization;
  std::string address;
  // Names in the certificate that TLS has verified.
  std::vector<std::string> names;
  // Whether the request is a POST.
  bool acts = false;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  using Handler = std::function<HttpReply(const HttpRequest&)>;
  // Returns the next part of an endless reply, possibly empty, within about a second; absent when it has
  // ended.
  using Stream = std::function<std::optional<std::string>()>;
  using StreamHandler = std::function<Stream(const HttpRequest&)>;
  // Called before a handler, unless its access is kEverybody, and before each part of an endless reply.
  // Returns the caller's name to admit it; an error refuses the request or ends the endless reply.
  using Authenticate = std::function<absl::StatusOr<std::string>(const HttpCaller&)>;

  // Endless replies (server-sent events) at the same time; more are refused with a retry delay.
  static constexpr int kMaxStreams = 16;

  struct Options {
    // "HOST:PORT"; port 0: any free one.
    std::string listen;
    // Null: every caller that reaches the port is admitted if it uses an IP address or localhost, which
    // excludes a web page whose name was made to resolve here.
    Authenticate authenticate;
    // PEM files: the certificate with its chain, its key, and the CAs that may sign callers' certificates.
    // Without the first two the port serves plain text; without the third it requests no client certificates.
    // Reloaded when they change (reloaded_tls.h).
    std::string tls_cert, tls_key, tls_ca;
  };

  // INVALID_ARGUMENT: invalid address or unusable TLS files; UNAVAILABLE: the address cannot be bound.
  // Requests are served after Start.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Bind(Options options);
  // Ends the streams and waits for running handlers.
  ~HttpServer();

  // kEverybody: `authenticate` is not called; for content without secrets: a probe, a page without metrics.
  enum class Access { kAuthenticated, kEverybody };

  // Paths are matched as a whole. REQUIRES: called before Start.
  void Get(const std::string& path, Handler handler, Access access = Access::kAuthenticated);
  // Accepts only bodies of type application/json, which a browser does not send across sites.
  void Post(const std::string& path, Handler handler);
  void GetStream(const std::string& path, std::string content_type, StreamHandler handler);
  // Serves until destruction. A port that the system closes is reopened and logged.
  void Start();

  // "HOST:PORT" as bound.
  const std::string& address() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace bfio
