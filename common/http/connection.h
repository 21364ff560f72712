// An HTTP connection with bounds that httplib lacks. Bounds the size of a request's headers and body, the
// time in which they must arrive, and the time in which the client must read the reply, whatever the client
// does. A handler can also check whether the client is still connected. It is an httplib::Stream because
// process_request, which parses the request and calls the handlers, reads from that interface; httplib's own
// streams (SocketStream, SSLSocketStream) have no bound for a whole request. Ownership: the socket is the
// caller's, and the server's state outlives the connection. Threads: the connection's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
// Must match how Debian's httplib is compiled.
#include "common/http/bounded_pool.h"
#include "common/http/tls_session.h"

namespace bfio {

struct ConnectionLimits {
  size_t header_bytes = 32 << 10;
  size_t body_bytes = 2 << 20;
  // From a request's first byte to its last; the second value applies while other connections wait for a
  // thread.
  absl::Duration read_timeout = absl::Seconds(30), crowded_read_timeout = absl::InfiniteDuration();
  // Time that a reply may wait for a client that reads nothing, or in total for one that reads less than
  // kLeastBytesPerSecond.
  absl::Duration write_timeout = absl::Seconds(30);
  // Time to wait for a connection's first request, and for later ones: longer than clients keep idle
  // connections, so that the client closes them.
  absl::Duration first_patience = absl::Seconds(10), idle_patience = absl::Seconds(75);
};

inline constexpr int64_t kLeastBytesPerSecond = 4 << 10;

// State that connections share with their server.
struct ServerState {
  // Connections that wait for a thread or their turn. A separate object, because httplib decides when the
  // pool is destroyed.
  const std::shared_ptr<std::atomic<int64_t>> waiting = std::make_shared<std::atomic<int64_t>>(0);
  // True: connections are no longer read or written.
  std::atomic<bool> ending = false;
};

class HttpConnection final : public httplib::Stream {
 public:
  // Plain text if `tls` is null. `leave_turn`: called by LeaveTurn.
  HttpConnection(int socket, const ConnectionLimits& limits, const ServerState& server,
                 std::unique_ptr<TlsSession> tls = nullptr, std::function<void()> leave_turn = nullptr)
      : socket_(socket),
        limits_(limits),
        server_(server),
        tls_(std::move(tls)),
        leave_turn_(std::move(leave_turn)) {}
  ~HttpConnection() override {
    if (tls_ != nullptr) tls_->Close();
  }

  // The connection whose request the calling thread handles; null on other threads.
  static HttpConnection* Current();

  // Waits for the next request; false when there will be none: the client is gone, or `patience` has passed.
  bool WaitForRequest(absl::Duration patience);
  // Resets the bounds before each request.
  void BeginRequest();
  void EndRequest();

  // Whether the client has closed its end (or both).
  bool PeerGone() const;
  // As TlsSession::PeerNames; empty in plain text.
  std::vector<std::string> PeerNames() const {
    return tls_ == nullptr ? std::vector<std::string>() : tls_->PeerNames();
  }
  // Whether the headers exceeded their bound.
  bool HeadersTooLarge() const { return headers_too_large_; }
  // Marks the connection: the rest of the request will not be read, so no further request can follow.
  void CloseAfterReply() { close_ = true; }
  bool close() const { return close_; }
  // The reply is endless: it no longer counts for the requests that are served at once, and is the last one.
  void LeaveTurn() {
    close_ = true;
    if (leave_turn_) leave_turn_();
  }
  // Marks that the headers were parsed, so the end of the request is known.
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
  // Does not block.
  bool HasBytes() const { return begin_ < end_ || (tls_ != nullptr && tls_->Pending()); }
  ssize_t ReadWithinBounds(char* to, size_t size);
  bool Fill();
  // False while the server ends, and after crowded_read_timeout while other connections wait.
  bool MayRead() const;
  // Bytes written, or -1: the client is gone or too slow.
  ssize_t WriteSome(const char* from, size_t size, absl::Time by);
  // Counts the bytes of the headers; false beyond their bound.
  bool CountHeaders(const char* bytes, size_t size);

  const int socket_;
  const ConnectionLimits limits_;
  const ServerState& server_;
  const std::unique_ptr<TlsSession> tls_;
  const std::function<void()> leave_turn_;
  std::array<char, 16 << 10> buffer_;
  size_t begin_ = 0, end_ = 0;
  absl::Time read_from_, read_by_;
  // Remaining part of write_timeout; replenished by bytes that the client reads.
  absl::Duration write_patience_;
  size_t header_bytes_ = 0, body_bytes_ = 0;
  // Detects the blank line that ends the headers: exactly CR LF, although httplib also accepts a line feed
  // alone.
  bool in_headers_ = true, line_is_return_ = false;
  size_t line_bytes_ = 0;
  bool headers_too_large_ = false;
  bool request_understood_ = false;
  bool close_ = false;
};

}  // namespace bfio
