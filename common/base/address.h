// "HOST:PORT" as written on a command line. An invalid address is rejected at start with one line, instead of
// showing later as a channel that never connects. Pure functions; any thread.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio {

// Upper bound of a host name's length, as in DNS.
inline constexpr size_t kMaxHostBytes = 253;

struct Address {
  // A name or an IP address; IPv6 without brackets.
  std::string host;
  // 0 only for listening, where the system then chooses.
  uint16_t port = 0;

  // "host:port", IPv6 in brackets, as gRPC expects it.
  std::string ToString() const;
  bool operator==(const Address&) const = default;
};

// Accepts "name:port", "1.2.3.4:port" and "[::1]:port". INVALID_ARGUMENT with one line otherwise.
// `port_may_be_0`: for listening addresses.
absl::StatusOr<Address> ParseAddress(absl::string_view text, bool port_may_be_0 = false);

// Not a name; IPv6 without brackets.
bool IsIpAddress(const std::string& host);

// The server that a client connects to: one address, or several, of which any may answer.
struct Target {
  std::vector<Address> addresses;

  // As gRPC expects it (NewChannel).
  std::string ToString() const;
};

// "HOST:PORT", or a list "IPV4:PORT,IPV4:PORT": gRPC accepts no list of names (but a name may resolve to
// several addresses). With `tls` a list is rejected, because no certificate covers it. INVALID_ARGUMENT with
// one line otherwise.
absl::StatusOr<Target> ParseTarget(absl::string_view text, bool tls = false);

// Whose share of a port a connection from there uses: its IPv4 address, or its IPv6 network of 64 bits, in
// bytes. Empty for other families.
std::string AccountOf(const sockaddr_storage& from);
// The same of a peer of gRPC (grpc::ServerContext::peer); of other families the text without the port.
std::string AccountOf(absl::string_view peer);

}  // namespace bfio
