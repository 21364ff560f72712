// The HTTP server in front of a router: OpenAI's completions, as a bfio client.
//
// Purpose: tools that speak OpenAI's API can be pointed at bfio. POST /v1/completions, /v1/chat/completions;
// GET /v1/models, /health. What is taken over and what is refused: docs/api.md. A connection holds a thread
// of its own as long as it lives; their number, headers, bodies and times are bounded. A client that goes
// away cancels its request. Threads: Bind, Start, Stop and destruction from one; the rest is the server's.
#ifndef BFIO_TOOLS_OPENAI_HTTP_FRONT_H_
#define BFIO_TOOLS_OPENAI_HTTP_FRONT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/client/client.h"
#include "tools/openai/completion_request.h"

namespace bfio::openai {

struct FrontOptions {
  // HOST:PORT; port 0 takes a free one.
  std::string listen = "127.0.0.1:8000";
  ParseOptions parse;
  // Of every request; its token and metadata come from the client's headers.
  client::CallOptions call;
  int max_connections = 256;
  size_t max_header_bytes = 32 << 10;
  size_t max_body_bytes = 2 << 20;
  // PEM files: certificate with its chain, and its key; plain text without (reloaded_tls.h).
  std::string tls_cert, tls_key;
};

class HttpFront {
 public:
  // `client` outlives the front. INVALID_ARGUMENT for an address that is none and TLS files that do not do,
  // UNAVAILABLE when the address cannot be had.
  static absl::StatusOr<std::unique_ptr<HttpFront>> Bind(FrontOptions options, client::Client* client);
  ~HttpFront();

  void Start();
  // Refuses what comes (503), waits for what is under way, at most `patience`, and cuts off the rest.
  void Stop(absl::Duration patience);

  // False when it has stopped, asked or not.
  bool running() const;
  // "HOST:PORT" as bound.
  const std::string& address() const;
  // For a scrape; any thread, until the front is destroyed.
  std::string MetricsText(const std::string& version) const;

 private:
  class Impl;
  explicit HttpFront(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace bfio::openai

#endif  // BFIO_TOOLS_OPENAI_HTTP_FRONT_H_
