// A loopback port for a program that may be restarted on it.
//
// Purpose: after a program ends, the kernel could give its port to another test's program or connection. A
// socket that is bound to the port and does not listen reserves it against programs that take any port, but
// not against the program that asks for this one (SO_REUSEADDR on both, and one listener). Threads: one.
#ifndef BFIO_TESTS_TESTING_HELD_PORT_H_
#define BFIO_TESTS_TESTING_HELD_PORT_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace bfio::testing {

class HeldPort {
 public:
  HeldPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~HeldPort() { close(fd_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
};

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_HELD_PORT_H_
