// An HTTP connection as httplib sees it, with bounds that httplib lacks.
//
// Purpose: a request's headers and body have a size and a time in which they must come, whatever the client
// does, its reply a time in which the client must take it; and a handler can ask whether the client is still
// there. Ownership: the socket is the caller's, and the server's state outlives the connection. Threads: one,
// the connection's.
#ifndef BFIO_COMMON_HTTP_CONNECTION_H_
#define BFIO_COMMON_HTTP_CONNECTION_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
// With httplib.h as Debian's library is compiled.
#include "common/http/bounded_pool.h"
#include "common/http/tls_session.h"

namespace bfio {

struct ConnectionLimits {
  size_t header_bytes = 32 << 10;
  size_t body_bytes = 2 << 20;
  // From a request's first byte to its last; the same while others wait for a thread.
  absl::Duration read_timeout = absl::Seconds(30), crowded_read_timeout = absl::InfiniteDuration();
  // How long a reply may wait for a reader that takes nothing, or in all for one that takes less than
  // kLeastBytesPerSecond.
  absl::Duration write_timeout = absl::Seconds(30);
  // For a connection's first request, and for one after another: longer than clients keep idle connections,
  // so that the clients close them.
  absl::Duration first_patience = absl::Seconds(10), idle_patience = absl::Seconds(75);
};

inline constexpr int64_t kLeastBytesPerSecond = 4 << 10;

// State that connections share with their server.
struct ServerState {
  const std::shared_ptr<PoolLoad> load = std::make_shared<PoolLoad>();
  // No connection is read or written any more.
  std::atomic<bool> ending = false;
};

class HttpConnection final : public httplib::Stream {
 public:
  // Plain text without `tls`.
  HttpConnection(int socket, const ConnectionLimits& limits, const ServerState& server,
                 std::unique_ptr<TlsSession> tls = nullptr)
      : socket_(socket), limits_(limits), server_(server), tls_(std::move(tls)) {}
  ~HttpConnection() override {
    if (tls_ != nullptr) tls_->Close();
  }

  // The connection whose request the calling thread handles; nullptr elsewhere.
  static HttpConnection* Current();

  // Waits for the next request; false when there will be none: the client is gone, or `patience` has passed.
  bool WaitForRequest(absl::Duration patience);
  // Before each request: new bounds.
  void BeginRequest();
  void EndRequest();

  // The client has closed its end (or both).
  bool PeerGone() const;
  // TlsSession::PeerNames; empty in plain text.
  std::vector<std::string> PeerNames() const {
    return tls_ == nullptr ? std::vector<std::string>() : tls_->PeerNames();
  }
  // The headers were larger than they may be.
  bool HeadersTooLarge() const { return headers_too_large_; }
  // What is left of the request will not be read, so nothing can follow on this connection.
  void CloseAfterReply() { close_ = true; }
  bool close() const { return close_; }
  // Its headers could be read, so it is known where it ends.
  void RequestUnderstood() { request_understood_ = true; }
  bool request_understood() const { return request_understood_; }

  bool is_readable() const override;
  bool is_writable() const override { return !PeerGone(); }
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  int socket() const override { return socket_; }

 private:
  // Without waiting.
  bool HasBytes() const { return begin_ < end_ || (tls_ != nullptr && tls_->Pending()); }
  ssize_t ReadWithinBounds(char* to, size_t size);
  bool Fill();
  // Not while the server ends, nor beyond crowded_read_timeout while others wait.
  bool MayRead() const;
  // Bytes written, or -1: the reader has gone, or is too slow.
  ssize_t WriteSome(const char* from, size_t size, absl::Time by);
  // Counts what the headers take; false beyond their bound.
  bool CountHeaders(const char* bytes, size_t size);

  const int socket_;
  const ConnectionLimits limits_;
  const ServerState& server_;
  const std::unique_ptr<TlsSession> tls_;
  std::array<char, 16 << 10> buffer_;
  size_t begin_ = 0, end_ = 0;
  absl::Time read_from_, read_by_;
  // What is left of write_timeout; bytes that are taken fill it up.
  absl::Duration write_patience_;
  size_t header_bytes_ = 0, body_bytes_ = 0;
  // Of the blank line that ends the headers: CR LF and nothing else. httplib goes on at a line feed alone.
  bool in_headers_ = true, line_is_return_ = false;
  size_t line_bytes_ = 0;
  bool headers_too_large_ = false;
  bool request_understood_ = false;
  bool close_ = false;
};

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_CONNECTION_H_
