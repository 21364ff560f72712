// A small HTTP server for people and their tools: /metrics, /healthz, pages.
//
// Purpose: what must be reached without gRPC. cpp-httplib does the work on threads of its own; headers,
// bodies, connections, waiting requests and the time that callers may take are bounded. A handler runs on one
// of those threads and must not block for long. Threads: Start, Handle and destruction from one thread;
// handlers run at the same time.
#ifndef BFIO_COMMON_HTTP_HTTP_SERVER_H_
#define BFIO_COMMON_HTTP_HTTP_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bfio {

struct HttpRequest {
  // "after" of "?after=7"; empty when it is not there.
  std::map<std::string, std::string> query;
  std::string body;
  // Name of the caller from the gate; without one a name in its certificate, or its address.
  std::string caller;
};

// Who makes a request, as far as it is known before the request is read.
struct HttpCaller {
  // Of the Authorization header; empty without one.
  std::string authorization;
  std::string address;
  // In the certificate that TLS has checked.
  std::vector<std::string> names;
  // The request is a POST.
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
  // Gives the next piece of an endless reply, possibly empty, within a second or so; nothing when it has
  // ended.
  using Stream = std::function<std::optional<std::string>()>;
  using StreamHandler = std::function<Stream(const HttpRequest&)>;
  // Called before a handler, unless access is open. Returns the caller's name to admit it.
  using Gate = std::function<absl::StatusOr<std::string>(const HttpCaller&)>;

  // Replies without an end (server-sent events) at the same time; more are refused with a delay.
  static constexpr int kMaxStreams = 16;

  struct Options {
    // "HOST:PORT"; port 0 takes a free one.
    std::string listen;
    // None: every caller that reaches the port is admitted, if it uses an IP address or localhost: a web
    // page whose name points here is not.
    Gate gate;
    // PEM files: certificate with its chain, its key, and the CAs one of which must have signed a caller's
    // certificate. Plain text without the first two, no client certificates without the third. Read
    // again when they change (reloaded_tls.h).
    std::string tls_cert, tls_key, tls_ca;
  };

  // INVALID_ARGUMENT for an address that is none or TLS files that do not do, UNAVAILABLE when it cannot be
  // had. Serves when Start is called.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Bind(Options options);
  // Ends the streams, waits for running handlers.
  ~HttpServer();

  // kEverybody: the gate is not called, for content without secrets: a probe, a page without
  // metrics.
  enum class Access { kGate, kEverybody };

  // A path is matched whole. REQUIRES: before Start.
  void Get(const std::string& path, Handler handler, Access access = Access::kGate);
  // Only bodies of type application/json, which a browser does not send to a site that its page is not from.
  void Post(const std::string& path, Handler handler);
  void GetStream(const std::string& path, std::string content_type, StreamHandler handler);
  // Serves until the end: a port that the system takes away is opened again, and the log says so.
  void Start();

  // "HOST:PORT" as bound.
  const std::string& address() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_HTTP_SERVER_H_
