// "HOST:PORT" as people write it on a command line.
//
// Purpose: a wrong address is refused at start with one line, not found out later as a channel that never
// connects. Pure; any thread.
#ifndef BFIO_COMMON_BASE_ADDRESS_H_
#define BFIO_COMMON_BASE_ADDRESS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio {

// Of a name, as DNS has them.
inline constexpr size_t kMaxHostBytes = 253;

struct Address {
  // Name or number; an IPv6 address without its brackets.
  std::string host;
  // 0 only where the system may choose (listening).
  uint16_t port = 0;

  // "host:port", IPv6 in brackets: what gRPC takes.
  std::string ToString() const;
  bool operator==(const Address&) const = default;
};

// Accepts "name:port", "1.2.3.4:port" and "[::1]:port". INVALID_ARGUMENT with one line otherwise.
// `port_may_be_0` for addresses to listen on.
absl::StatusOr<Address> ParseAddress(absl::string_view text, bool port_may_be_0 = false);

// Where a client goes: one address, or several of which whichever answers is meant.
struct Target {
  std::vector<Address> addresses;

  // As gRPC takes it (NewChannel).
  std::string ToString() const;
};

// "HOST:PORT", or "NUMBER:PORT,NUMBER:PORT" with IPv4 numbers: gRPC takes no list of names (a name that
// resolves to several does). No list with `tls`: no certificate is for one. INVALID_ARGUMENT with one line
// otherwise.
absl::StatusOr<Target> ParseTarget(absl::string_view text, bool tls = false);

}  // namespace bfio

#endif  // BFIO_COMMON_BASE_ADDRESS_H_
