// One GET over HTTP/1.0, for tests that read a page of a program.
//
// Threads: any.
#ifndef BFIO_TESTS_TESTING_HTTP_GET_H_
#define BFIO_TESTS_TESTING_HTTP_GET_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace bfio::testing {

// A socket that is connected to HOST:PORT, an IPv4 address, from `own`; -1: no process listens there.
inline int ConnectTo(const std::string& address, const char* own = "0.0.0.0") {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) return -1;
  to.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) != 1) return -1;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in from{};
  from.sin_family = AF_INET;
  inet_pton(AF_INET, own, &from.sin_addr);
  bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof(from));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
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

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_HTTP_GET_H_
