// "HOST:PORT" as people write it on a command line.
//
// Purpose: a wrong address is refused at start with one line, not found out later as a channel that never
// connects. Pure; any thread.
#ifndef BFIO_COMMON_NET_ADDRESS_H_
#define BFIO_COMMON_NET_ADDRESS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio {

struct Address {
  // Name or number; an IPv6 address without its brackets.
  std::string host;
  // 0 only where the system may choose (listening).
  uint16_t port = 0;

  // "host:port", IPv6 in brackets: what gRPC takes.
  std::string ToString() const;
};

// Accepts "name:port", "1.2.3.4:port" and "[::1]:port". INVALID_ARGUMENT with one line otherwise.
// `port_may_be_0` for addresses to listen on.
absl::StatusOr<Address> ParseAddress(absl::string_view text, bool port_may_be_0 = false);

}  // namespace bfio

#endif  // BFIO_COMMON_NET_ADDRESS_H_
