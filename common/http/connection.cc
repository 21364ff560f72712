#include "common/http/connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/clock.h"

namespace bfio {
namespace {

thread_local HttpConnection* current = nullptr;

void Describe(const sockaddr_storage& address, std::string& ip, int& port) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    port = ntohs(v6.sin6_port);
  }
  ip = text;
}

}  // namespace

HttpConnection* HttpConnection::Current() {
  return current;
}

bool HttpConnection::WaitForRequest(absl::Duration patience) {
  return HasBytes() || (PollSocket(socket_, POLLIN, patience) & POLLIN) != 0;
}

void HttpConnection::BeginRequest() {
  read_from_ = MonotonicNow();
  read_by_ = read_from_ + limits_.read_timeout;
  write_patience_ = limits_.write_timeout;
  header_bytes_ = body_bytes_ = 0;
  in_headers_ = true;
  line_bytes_ = 0;
  headers_too_large_ = request_understood_ = false;
  current = this;
}

void HttpConnection::EndRequest() {
  current = nullptr;
}

bool HttpConnection::PeerGone() const {
  return (PollSocket(socket_, POLLRDHUP, absl::ZeroDuration()) &
          (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

bool HttpConnection::is_readable() const {
  return HasBytes() || (AwaitSocket(socket_, POLLIN, read_by_, [this] { return MayRead(); }) & POLLIN) != 0;
}

ssize_t HttpConnection::read(char* to, size_t size) {
  const ssize_t taken = ReadWithinBounds(to, size);
  // Anything that follows on this connection would be the rest of an abandoned request.
  if (taken < 0) close_ = true;
  return taken;
}

ssize_t HttpConnection::ReadWithinBounds(char* to, size_t size) {
  if (begin_ == end_ && !Fill()) return -1;
  const size_t taken = std::min(size, end_ - begin_);
  if (in_headers_) {
    if (!CountHeaders(buffer_.data() + begin_, taken)) return -1;
  } else {
    body_bytes_ += taken;
    // The framing of chunks counts too.
    if (body_bytes_ > 2 * limits_.body_bytes + (64 << 10)) return -1;
  }
  std::memcpy(to, buffer_.data() + begin_, taken);
  begin_ += taken;
  return static_cast<ssize_t>(taken);
}

bool HttpConnection::Fill() {
  begin_ = end_ = 0;
  const auto may_read = [this] { return MayRead(); };
  if (tls_ != nullptr) {
    const ssize_t got = tls_->Read(buffer_.data(), buffer_.size(), read_by_, may_read);
    end_ = static_cast<size_t>(std::max<ssize_t>(0, got));
    return end_ > 0;
  }
  if (!may_read() || (AwaitSocket(socket_, POLLIN, read_by_, may_read) & POLLIN) == 0) return false;
  ssize_t got;
  do {
    got = recv(socket_, buffer_.data(), buffer_.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return false;
  end_ = static_cast<size_t>(got);
  return true;
}

bool HttpConnection::CountHeaders(const char* bytes, size_t size) {
  // httplib reads headers byte by byte, so the count never includes bytes of the body.
  for (size_t i = 0; i < size && in_headers_; ++i) {
    ++header_bytes_;
    line_is_return_ = bytes[i] == '\r' ? line_bytes_ == 0 : line_is_return_ && bytes[i] == '\n';
    ++line_bytes_;
    if (bytes[i] != '\n') continue;
    in_headers_ = !(line_bytes_ == 2 && line_is_return_);
    line_bytes_ = 0;
  }
  headers_too_large_ = header_bytes_ > limits_.header_bytes;
  return !headers_too_large_;
}

ssize_t HttpConnection::write(const char* from, size_t size) {
  const absl::Time start = MonotonicNow();
  const ssize_t sent = WriteSome(from, size, start + write_patience_);
  const absl::Duration earned = absl::Seconds(static_cast<double>(std::max<ssize_t>(sent, 0)) /
                                              static_cast<double>(kLeastBytesPerSecond));
  write_patience_ = std::min(limits_.write_timeout, write_patience_ - (MonotonicNow() - start) + earned);
  return sent;
}

ssize_t HttpConnection::WriteSome(const char* from, size_t size, absl::Time by) {
  const auto may_write = [this] { return !server_.ending; };
  if (tls_ != nullptr) return tls_->Write(from, size, by, may_write);
  if ((AwaitSocket(socket_, POLLOUT, by, may_write) & POLLOUT) == 0) return -1;
  ssize_t sent;
  do {
    // MSG_NOSIGNAL: a client that is gone is an error, not SIGPIPE.
    sent = send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

bool HttpConnection::MayRead() const {
  if (server_.ending) return false;
  return *server_.waiting == 0 || MonotonicNow() - read_from_ < limits_.crowded_read_timeout;
}

void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &length) == 0) Describe(address, ip, port);
}

void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length) == 0) Describe(address, ip, port);
}

}  // namespace bfio
