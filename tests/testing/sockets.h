// Plain sockets of tests, to and from HOST:PORT, an IPv4 address, and one GET over HTTP/1.0. Threads: any.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"

namespace bfio::testing {

inline sockaddr_in SocketAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in of{};
  of.sin_family = AF_INET;
  if (inet_pton(AF_INET, address.substr(0, colon).c_str(), &of.sin_addr) != 1)
    throw std::runtime_error("no address: " + address);
  of.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  return of;
}

// A socket that is bound to `address`, with SO_REUSEADDR; port 0: any.
inline int BoundTo(const std::string& address, int flags = 0) {
  const sockaddr_in at = SocketAddress(address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0), on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0)
    throw std::runtime_error("cannot bind to " + address);
  return fd;
}

inline int PortOf(int fd) {
  sockaddr_in at{};
  socklen_t size = sizeof(at);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0 ? ntohs(at.sin_port) : 0;
}

// A socket that is connected, or with SOCK_NONBLOCK connects, to `address`; -1: no process listens there.
// `own`: a host of this machine; empty: any.
inline int ConnectTo(const std::string& address, const std::string& own = "", int flags = 0) {
  const sockaddr_in to = SocketAddress(address);
  const int fd =
      own.empty() ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0) : BoundTo(own + ":0", flags);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 || errno == EINPROGRESS) return fd;
  close(fd);
  return -1;
}

// The body of the response. Empty when no process listens there, or the status is not 200.
inline std::optional<std::string> HttpGet(const std::string& address, const std::string& path) {
  const int fd = ConnectTo(address);
  if (fd < 0) return std::nullopt;
  std::string reply;
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    char buffer[16384];
    for (ssize_t got; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;)
      reply.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  const size_t body = reply.find("\r\n\r\n");
  if (body == std::string::npos || reply.find(" 200 ") != reply.find(' ')) return std::nullopt;
  return reply.substr(body + 4);
}

// A loopback port for a program that may be restarted on it.
//
// Purpose: after a program ends, the kernel could give its port to another test's program or connection. A
// socket that is bound to the port and does not listen reserves it against programs that take any port, but
// not against the program that asks for this one (SO_REUSEADDR on both, and one listener). Threads: one.
class HeldPort {
 public:
  HeldPort() = default;
  ~HeldPort() { close(fd_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  const std::string& address() const { return address_; }

 private:
  const int fd_ = BoundTo("127.0.0.1:0");
  const std::string address_ = absl::StrCat("127.0.0.1:", PortOf(fd_));
};

}  // namespace bfio::testing
