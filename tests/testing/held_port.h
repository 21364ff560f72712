// A loopback port for a program that may be restarted on it.
//
// Purpose: after a program ends, the kernel could give its port to another test's program or connection. A
// socket that is bound to the port and does not listen reserves it against programs that take any port, but
// not against the program that asks for this one (SO_REUSEADDR on both, and one listener). Threads: one.
#pragma once

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/sockets.h"

namespace bfio::testing {

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
