#include "common/base/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace bfio {
namespace {

bool IsHostCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
}

// Includes the zone of a link-local address ("fe80::1%eth0"). The resolver checks the rest.
bool IsIpv6Character(char c) {
  return IsHostCharacter(c) || c == ':' || c == '%';
}

}  // namespace

std::string Address::ToString() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text, bool port_may_be_0) {
  const auto bad = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("address '", text, "' ", what, "; HOST:PORT is expected"));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return bad("has no port");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port_text = text.substr(colon + 1);
  const bool bracketed = absl::ConsumePrefix(&host, "[");
  if (bracketed && !absl::ConsumeSuffix(&host, "]")) return bad("has a bracket that is not closed");
  if (host.empty()) return bad("has no host");
  if (host.size() > kMaxHostBytes) return bad("has a host that is too long");
  const bool host_ok =
      bracketed ? absl::StrContains(host, ':') && std::all_of(host.begin(), host.end(), IsIpv6Character)
                : std::all_of(host.begin(), host.end(), IsHostCharacter);
  if (!host_ok)
    return bad(bracketed ? "is not an IPv6 address in brackets"
                         : "has a character that host names cannot have");
  // Only digits: absl's parser would accept spaces and a sign.
  const bool digits = !port_text.empty() && port_text.size() <= 5 &&
                      std::all_of(port_text.begin(), port_text.end(), absl::ascii_isdigit);
  uint32_t port = 0;
  if (!digits || !absl::SimpleAtoi(port_text, &port) || port > 65535 || (port == 0 && !port_may_be_0))
    return bad("has a port out of range");
  return Address{std::string(host), static_cast<uint16_t>(port)};
}

std::string Target::ToString() const {
  const auto add = [](std::string* out, const Address& address) { out->append(address.ToString()); };
  return absl::StrCat(addresses.size() > 1 ? "ipv4:" : "", absl::StrJoin(addresses, ",", add));
}

absl::StatusOr<Target> ParseTarget(absl::string_view text, bool tls) {
  Target target;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    BFIO_ASSIGN_OR_RETURN(Address address, ParseAddress(part));
    target.addresses.push_back(std::move(address));
  }
  if (target.addresses.size() > 1 && tls) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "': a list of addresses cannot be used with TLS, because no certificate covers it; give "
                     "one name that resolves to all of them"));
  }
  for (const Address& address : target.addresses) {
    in_addr number;
    if (target.addresses.size() == 1 || inet_pton(AF_INET, address.host.c_str(), &number) == 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", address.host,
                     "' is not an IPv4 address; a list can only have IPv4 addresses. Instead of a list, give "
                     "one name that resolves to all of them"));
  }
  return target;
}

bool IsIpAddress(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

std::string AccountOf(const sockaddr_storage& from) {
  if (from.ss_family == AF_INET) {
    const in_addr& v4 = reinterpret_cast<const sockaddr_in&>(from).sin_addr;
    return {reinterpret_cast<const char*>(&v4), sizeof(v4)};
  }
  if (from.ss_family != AF_INET6) return "";
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
  const auto* bytes = reinterpret_cast<const char*>(v6.s6_addr);
  return IN6_IS_ADDR_V4MAPPED(&v6) ? std::string(bytes + 12, 4) : std::string(bytes, 8);
}

std::string AccountOf(absl::string_view peer) {
  const absl::string_view host = peer.substr(0, peer.rfind(':'));
  absl::string_view v4 = host, v6 = host;
  sockaddr_storage from{};
  if (absl::ConsumePrefix(&v4, "ipv4:") &&
      inet_pton(AF_INET, std::string(v4).c_str(), &reinterpret_cast<sockaddr_in&>(from).sin_addr) == 1) {
    from.ss_family = AF_INET;
  } else if (absl::ConsumePrefix(&v6, "ipv6:%5B") && absl::ConsumeSuffix(&v6, "%5D") &&
             inet_pton(AF_INET6, std::string(v6).c_str(), &reinterpret_cast<sockaddr_in6&>(from).sin6_addr) ==
                 1) {
    from.ss_family = AF_INET6;
  } else {
    return std::string(host);
  }
  return AccountOf(from);
}

}  // namespace bfio
