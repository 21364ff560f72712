// A small HTTP server for people and their tools: /metrics, /healthz, pages.
//
// Purpose: what must be reached without gRPC. cpp-httplib does the work on threads of its own; bodies,
// connections and waiting requests are bounded. A handler runs on one of those threads and must not block for
// long. Threads: Start, Handle and destruction from one thread; handlers run at the same time.
#ifndef BFIO_COMMON_TELEMETRY_METRICS_HTTP_SERVER_H_
#define BFIO_COMMON_TELEMETRY_METRICS_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace bfio {

struct HttpReply {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  // GET of exactly this path.
  using Handler = std::function<HttpReply()>;
  // Asked before every handler with the Authorization header's value, empty if there is none. OK lets it
  // pass.
  using Gate = std::function<absl::Status(const std::string& authorization, const std::string& peer)>;

  struct Options {
    // "HOST:PORT"; port 0 takes a free one.
    std::string listen;
    // None: everybody may enter.
    Gate gate;
  };

  // INVALID_ARGUMENT for an address that is none, UNAVAILABLE when it cannot be had. Serves when Start is
  // called.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Bind(Options options);
  ~HttpServer();

  // REQUIRES: before Start.
  void Handle(const std::string& path, Handler handler);
  void Start();

  // "HOST:PORT" as bound.
  const std::string& address() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_METRICS_HTTP_SERVER_H_
