#include "common/net/exposure.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace bfio {

bool IsLoopback(const Address& address) {
  in_addr v4;
  if (inet_pton(AF_INET, address.host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  if (inet_pton(AF_INET6, address.host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  return absl::EqualsIgnoreCase(address.host, "localhost");
}

bool IsLoopback(const Target& target) {
  return std::all_of(target.addresses.begin(), target.addresses.end(),
                     [](const Address& address) { return IsLoopback(address); });
}

bool AnswersAt(const Address& listening, const Address& other) {
  return listening.host == other.host || listening.host == "0.0.0.0" || listening.host == "::" ||
         (IsLoopback(listening) && IsLoopback(other));
}

absl::Status CheckExposure(const Address& address, const PortSetup& port) {
  if (IsLoopback(address)) return absl::OkStatus();
  const auto refuse = [&](absl::string_view why, absl::string_view give) {
    return absl::InvalidArgumentError(absl::StrCat("--", port.listen_flag, "=", address.ToString(),
                                                   ": other machines can reach it, and ", why, ": give ",
                                                   give, ", or --insecure"));
  };
  if (!port.encrypted) {
    return refuse("nothing is encrypted", absl::StrCat("--", port.tls_flag, "=cert=FILE,key=FILE"));
  }
  if (!port.asks_who_calls) return refuse("callers are not authenticated", port.ask_flags);
  return absl::OkStatus();
}

}  // namespace bfio
